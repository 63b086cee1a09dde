"""``python -m benchmarks.mixing``: doubly stochastic matrices beside twenty steps of Sinkhorn.

How exact the sums and the gradients are, also for logits that are hard; what a million small matrices take;
and a residual network of four streams that are mixed by one matrix for each layer and image. Each number is
written as soon as it is there, and what the file has already is not measured again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import mpmath as mp
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.case import peak_bytes
from benchmarks.run import check_tree, environment, present, write
from benchmarks.table import RESULTS, Table, load
from spectral_param.functional import _balancing as balancing

SEEDS, DEPTH, STREAMS, WIDTH = 3, 24, 4, 16
SIZES = (2, 3, 4, 8, 16, 32, 64)


def sinkhorn(T: Tensor, steps: int = 20) -> Tensor:
    """Return what dividing by the sums of columns and rows leaves after some steps.

    Args:
        T: Logits ``(..., n, n)``.
        steps: How often both are divided.
    """
    W = torch.exp(T - T.amax(dim=(-2, -1), keepdim=True))
    for _ in range(steps):
        W = W / W.sum(dim=-2, keepdim=True)
        W = W / W.sum(dim=-1, keepdim=True)
    return W


# How exact they are -----------------------------------------------------------------------------------


def logits(n: int, size: float, seed: int = 0) -> dict[str, Tensor]:
    """Return logits between ``-size`` and ``size``, in double precision, by kind.

    Args:
        n: Rows and columns.
        size: Of the largest.
        seed: Of the random ones.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1

    def pattern(mask: Tensor) -> Tensor:
        return torch.where(mask, size, -size).double()

    i = torch.arange(n)
    ones = torch.ones(n, n, dtype=torch.bool)
    shuffled = torch.stack([torch.eye(n)[torch.randperm(n, generator=generator)] > 0 for _ in range(4)])
    half = (i < n // 2)[:, None] == (i < n // 2)
    products = (i[:, None] * i).double() / max((n - 1) ** 2, 1)
    sparse = torch.rand(16, n, n, generator=generator) < 2 / n
    found = {
        "uniform": size * uniform(16, n, n),
        "permutation": pattern(shuffled),
        "permutation, disturbed": pattern(shuffled) * 0.9 + 0.1 * size * uniform(4, n, n),
        "two blocks": pattern(half) + 0.1 * uniform(4, n, n),
        "one-way blocks": torch.where(half | (i[:, None] >= n // 2), pattern(half), 0)
        + 0.1 * uniform(4, n, n),
        "triangle": torch.stack([pattern(ones.triu(k)) for k in (-1, 0, 1)]),
        "one row": torch.stack([pattern(i[:, None] == 0 * i), pattern((i[:, None] == 0) | (i == 0))]),
        "products": size * torch.stack([2 * products - 1, 1 - 2 * products]),
        "sparse": pattern(sparse),
        "sparse, disturbed": 0.9 * pattern(sparse) + 0.1 * size * uniform(16, n, n),
        "levels": size * torch.randint(-1, 2, (16, n, n), generator=generator).double(),
    }
    return {name: T.reshape(-1, n, n).clamp(-size, size) for name, T in found.items()}


def steps_needed(T: Tensor) -> int:
    """Return after how many of Newton's steps a matrix is done, the last ones included.

    Args:
        T: Logits ``(n, n)``.
    """
    with mock.patch.object(balancing, "newton_step", side_effect=balancing.newton_step) as step:
        sp.functional.doubly_stochastic(T)
    return int(step.call_count)


def sums(n: int, size: float, dtype: torch.dtype) -> dict[str, float]:
    """Return the largest errors of sums, in n eps, of a product of 60, and of Sinkhorn's; and the steps.

    Args:
        n: Rows and columns.
        size: Of the logits.
        dtype: Of the matrices.
    """
    eps, worst, steps, plain = torch.finfo(dtype).eps, 0.0, 0, 0.0
    for T in logits(n, size).values():
        W = sp.functional.doubly_stochastic(T.to(dtype))
        worst = max(worst, *((W.double().sum(dim) - 1).abs().max().item() for dim in (-2, -1)))
        plain = max(plain, *((sinkhorn(T).sum(dim) - 1).abs().max().item() for dim in (-2, -1)))
        steps = max(steps, *(steps_needed(t) for t in T.to(dtype)))
    torch.manual_seed(0)
    product = torch.eye(n, dtype=dtype)
    for T in size * torch.randn(60, n, n, dtype=dtype):
        product = product @ sp.functional.doubly_stochastic(T)
    norm = torch.linalg.matrix_norm(product.double(), 2).item()
    return {
        "sums": worst / (n * eps),
        "steps": steps,
        "product": (norm - 1) / (60 * n * eps),
        "sinkhorn": plain,
    }


def gradients(n: int, size: float, dtype: torch.dtype) -> dict[str, float]:
    """Return the largest errors of gradients: of the largest entry of G, and of that of the gradient.

    Beside 60 digits.

    Args:
        n: Rows and columns.
        size: Of the logits.
        dtype: Of the matrices.
    """
    of_G, of_itself = 0.0, {}
    generator = torch.Generator().manual_seed(1)
    for name, stack in logits(n, size).items():
        for T in stack[:2].to(dtype):
            G = torch.randn(n, n, generator=generator, dtype=torch.float64).to(dtype)
            T.requires_grad_()
            (found,) = torch.autograd.grad(sp.functional.doubly_stochastic(T), T, G)
            expected = exact_gradient(T.detach(), G)
            error = (found.double() - expected).abs().max().item()
            of_G = max(of_G, error / G.abs().max().item())
            of_itself[name] = max(of_itself.get(name, 0.0), error / expected.abs().max().item())
    eps = torch.finfo(dtype).eps
    return {"of G": of_G / (n * eps), **{name: value / (n * eps) for name, value in of_itself.items()}}


def exact_gradient(T: Tensor, G: Tensor) -> Tensor:
    """Return the gradient in 60 digits, by the formulas as they stand.

    Args:
        T: Logits ``(n, n)``.
        G: The gradient of W.
    """
    n = len(T)
    with mp.workdps(60):
        logits, grads = (mp.matrix(X.double().tolist()) for X in (T, G))
        g = mp.matrix([-mp.log(mp.fsum(map(mp.exp, logits[:, j]))) for j in range(n)])
        size = mp.mpf(1)
        while size > mp.mpf(10) ** -25:
            W = (logits + mp.ones(n, 1) * g.T).apply(mp.exp)
            W = mp.diag([1 / mp.fsum(W[i, :]) for i in range(n)]) * W
            c = [mp.fsum(W[:, j]) for j in range(n)]
            step = _grounded(W, c, [1 - each for each in c])
            size = max(step) - min(step)
            g += step * (mp.log(1 + size) / size if size > 0.5 else 1)
        rows = mp.matrix([mp.fsum(W[i, j] * grads[i, j] for j in range(n)) for i in range(n)])
        right = [mp.fsum(W[i, j] * (grads[i, j] - rows[i]) for i in range(n)) for j in range(n)]
        b = _grounded(W, c, right)
        a = rows - W * b
        return torch.tensor(
            [[float(W[i, j] * (grads[i, j] - a[i] - b[j])) for j in range(n)] for i in range(n)],
            dtype=torch.float64,
        )


def _grounded(W: Any, c: list[Any], right: list[Any]) -> Any:
    """Return the solution of (diag(c) - WᵀW) x = right whose last number is 0."""
    L = mp.diag(c) - W.T * W
    n = len(c)
    return mp.matrix([*mp.lu_solve(L[: n - 1, : n - 1], mp.matrix(right[: n - 1])), 0])


# What they cost ---------------------------------------------------------------------------------------


def times(kind: str, count: int) -> dict[str, float]:
    """Return the median seconds of a forward and backward pass, and the peak memory in matrices.

    Args:
        kind: ``eager`` or ``compiled``.
        count: Of 4 x 4 matrices.
    """
    torch.manual_seed(0)
    T, G = torch.randn(2, count, 4, 4)
    runs: dict[str, Callable[[], None]] = {}
    for name, function in (("this", sp.functional.doubly_stochastic), ("Sinkhorn", sinkhorn)):
        called = torch.compile(function) if kind == "compiled" else function

        def run(called: Any = called) -> None:
            X = T.clone().requires_grad_()
            torch.autograd.grad(called(X), X, G)

        run()
        runs[name] = run
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(5):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    found = {}
    for name, each in seconds.items():
        low, middle, high = statistics.quantiles(each, n=4)
        found |= {name: middle, f"{name}, quartiles": high - low}
        found[f"{name}, peak"] = peak_bytes(runs[name]) / (64 * count)
    return found


# A network of four streams ----------------------------------------------------------------------------


def unconstrained(T: Tensor) -> Tensor:
    """Return the identity and the logits that depend on the input.

    Args:
        T: Logits, 4 on the diagonal at the start.
    """
    return T - 3 * torch.eye(T.shape[-1])


MIXINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "unconstrained": unconstrained,
    "20 steps of Sinkhorn": sinkhorn,
    "doubly_stochastic": sp.functional.doubly_stochastic,
}


class Streams(nn.Module):
    """Hyper-connections: each layer reads one of four streams' mixtures, and all streams are mixed."""

    def __init__(self, mixing: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mixing = mixing
        self.embed = nn.Linear(64, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
            )
            for _ in range(DEPTH)
        )
        self.read, self.write = (nn.Parameter(torch.ones(DEPTH, STREAMS) / STREAMS) for _ in range(2))
        self.bias = nn.Parameter(4 * torch.eye(STREAMS).repeat(DEPTH, 1, 1))
        self.logits = nn.ModuleList(nn.Linear(STREAMS * WIDTH, STREAMS**2, bias=False) for _ in range(DEPTH))
        for layer in self.logits:
            nn.init.normal_(layer.weight, std=0.1)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores, and the products of the mixing matrices ``(batch, 4, 4)``."""
        X = self.embed(x)[:, None].expand(-1, STREAMS, -1)
        product = torch.eye(STREAMS).expand(len(x), -1, -1)
        for i, layer in enumerate(self.layers):
            state = nn.functional.layer_norm(X.flatten(1), (STREAMS * WIDTH,))
            W = self.mixing(self.bias[i] + self.logits[i](state).unflatten(1, (STREAMS, STREAMS)))
            X = W @ X + self.write[i][:, None] * layer((self.read[i][:, None] * X).sum(1))[:, None]
            product = W.detach() @ product
        return self.head(X.mean(1)), product


def streams(name: str, seed: int, epochs: int) -> dict[str, float]:
    """Return losses, the accuracy, and the norms of the products through all layers, on images not seen.

    Args:
        name: Of the mixing.
        seed: Of the start and of the order of images.
        epochs: Of training.
    """
    images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    x, y = (images / 8 - 1).float(), labels.long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    torch.manual_seed(seed)
    model = Streams(MIXINGS[name])
    optimizer, loss = torch.optim.Adam(model.parameters(), 3e-3), torch.tensor(torch.nan)
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train))].split(140):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch])[0], y[batch])
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        scores, products = model(x[test])
        norms = torch.linalg.matrix_norm(products, 2)
        return {
            "loss": loss.item(),
            "test loss": nn.functional.cross_entropy(scores, y[test]).item(),
            "accuracy": (scores.argmax(1) == y[test]).float().mean().item(),
            "norm": norms.median().item(),
            "largest norm": norms.max().item(),
            "sums": max((products.sum(dim) - 1).abs().max().item() for dim in (1, 2)),
        }


# Tables -----------------------------------------------------------------------------------------------


def exactness() -> Table:
    """Return the errors of sums by size."""
    rows = []
    for name, r in load("mixing")["sums"].items():
        rows.append(
            [name, f"{r['sums']:.2g}", f"{max(r['product'], 0):.2g}", str(r["steps"]), f"{r['sinkhorn']:.1g}"]
        )
    return [
        "",
        "sums, in n ε",
        "norm of a product of 60 above 1, in 60 n ε",
        "steps",
        "Sinkhorn, 20 steps",
    ], rows


def networks() -> Table:
    """Return what networks of four streams reach: the medians over seeds, with the range of norms."""
    found: dict[str, list[dict[str, float]]] = {}
    for name, result in load("mixing")["streams"].items():
        found.setdefault(name.rsplit(", seed", 1)[0], []).append(result)
    rows = []
    for name, each in found.items():
        losses, accuracies = ([r[key] for r in each] for key in ("test loss", "accuracy"))
        norms = [r["largest norm"] for r in each]
        sums = max(r["sums"] for r in each)
        rows.append(
            [
                name,
                f"{statistics.median(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})",
                f"{statistics.median(accuracies):.3f}",
                f"{min(norms):.6g} to {max(norms):.6g}",
                f"{sums:.1g}",
            ]
        )
    header = [
        "mixing",
        "test loss",
        "accuracy",
        f"largest norm of the product of {DEPTH}",
        "its sums are off by",
    ]
    return header, rows


def seconds() -> Table:
    """Return times and peak memory beside Sinkhorn."""
    rows = []
    for name, r in load("mixing")["times"].items():
        for way in ("this", "Sinkhorn"):
            rows.append(
                [
                    f"{name}, {way}",
                    f"{r[way]:.2g}",
                    f"{r[f'{way}, quartiles']:.1g}",
                    f"{r[f'{way}, peak']:.1f}",
                ]
            )
    return ["", "seconds", "between quartiles", "peak memory, in sizes of T"], rows


def main() -> None:
    """Measure, print and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the machinery")
    parts = ("sums", "gradients", "times", "streams")
    parser.add_argument("--only", nargs="*", choices=parts, default=list(parts))
    parser.add_argument("--output", type=Path, default=RESULTS / "mixing.json")
    arguments = parser.parse_args()
    check_tree(arguments.output)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)

    def measured(part: str, name: str, function: Callable[[], dict[str, float]]) -> None:
        if part not in arguments.only or name in present(arguments.output).get(part, {}):
            return
        found = function()
        print(part, name, found, flush=True)
        results = present(arguments.output)
        results.setdefault(part, {})[name] = found
        write(arguments.output, part, results[part])
        write(arguments.output, "environment", environment())

    quick = arguments.quick
    for seed in range(1 if quick else SEEDS):
        for name in MIXINGS:
            measured(
                "streams", f"{name}, seed {seed}", lambda n=name, s=seed: streams(n, s, 1 if quick else 30)
            )
    for dtype in (torch.float32, torch.float64):
        for size in (1.0, 6.0, 30.0):
            for n in SIZES[:2] if quick else SIZES:
                name = f"{str(dtype)[6:]}, logits of size {size:g}, n = {n}"
                measured("sums", name, lambda n=n, s=size, d=dtype: sums(n, s, d))
                if n in (2, 4, 8):
                    measured("gradients", name, lambda n=n, s=size, d=dtype: gradients(n, s, d))
    for kind in ("eager",) if quick else ("eager", "compiled"):
        measured("times", kind, lambda k=kind: times(k, 1000 if quick else 1_000_000))


if __name__ == "__main__":
    main()
