"""Doubly stochastic matrices beside twenty steps of Sinkhorn.

How exact the sums and the gradients are, also for logits that are hard; what a million small matrices take;
and a residual network of four streams that are mixed by one matrix for each layer and image.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.cases.case import peak_bytes
from benchmarks.problems.mixing import exact_gradient, logits, sinkhorn
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from examples.papers.runs import flushed_denormals
from spectral_param.functional import _balancing as balancing

DEPENDS = (
    "spectral_param/functional/_balancing.py",
    "spectral_param/functional/_doubly_stochastic.py",
    "benchmarks/measures/mixing.py",
    "benchmarks/problems/mixing.py",
)
VARIES = "streams|gradient|sums|peak"

SEEDS, EPOCHS, DEPTH, STREAMS, WIDTH = 3, 10, 24, 4, 16
SIZES = (2, 3, 4, 8, 16, 32, 64)


def tasks(quick: bool) -> Iterator[Task]:
    """Yield the tasks: sums, gradients, times, networks."""
    for dtype in (torch.float32, torch.float64):
        for size in (1.0,) if quick else (1.0, 6.0, 30.0):
            for n in SIZES[:2] if quick else SIZES:
                name = f"{str(dtype)[6:]}, logits of size {size:g}, n = {n}"
                yield Task(f"sums: {name}", partial(sums, n, size, dtype), threads=1)
                if n in (2, 4, 8):
                    yield Task(f"gradient: {name}", partial(gradients, n, size, dtype), threads=1)
    for threads in (1, None):
        for kind in ("eager",) if quick else ("eager", "compiled"):
            name = f"times: {kind}, {'one thread' if threads else 'all threads'}"
            yield Task(name, partial(times, kind, 1000 if quick else 1_000_000), threads=threads)
    for seed in range(1 if quick else SEEDS):
        for mixing in MIXINGS:
            name = f"streams: {mixing}, seed {seed}"
            yield Task(name, partial(streams, mixing, seed, 1 if quick else EPOCHS), threads=1)


# How exact they are -----------------------------------------------------------------------------------


def steps_needed(T: Tensor) -> int:
    """Return after how many of Newton's steps a matrix is done, the last ones included.

    Args:
        T: Logits ``(n, n)``.
    """
    with mock.patch.object(balancing, "newton_step", side_effect=balancing.newton_step) as step:
        sp.functional.doubly_stochastic(T)
    return int(step.call_count)


def sums(n: int, size: float, dtype: torch.dtype) -> Result:
    """Return the largest errors of sums, in n eps, of a product of 60, and of Sinkhorn's; and the steps.

    Args:
        n: Rows and columns.
        size: Of the logits.
        dtype: Of the matrices.
    """
    eps, worst, steps, plain = torch.finfo(dtype).eps, 0.0, 0, 0.0
    for T in logits(n, size).values():
        W = sp.functional.doubly_stochastic(T.to(dtype))
        worst = max(worst, _off(W.double()))
        plain = max(plain, _off(sinkhorn(T)))
        steps = max(steps, *(steps_needed(t) for t in T.to(dtype)))
    generator = torch.Generator().manual_seed(0)
    product = torch.eye(n, dtype=dtype)
    for T in size * torch.randn(60, n, n, dtype=dtype, generator=generator):
        product = product @ sp.functional.doubly_stochastic(T)
    above = torch.linalg.matrix_norm(product.double(), 2).item() - 1
    assert worst <= 8 * n * eps, f"expected sums of 1 to 8 n eps, got an error of {worst / (n * eps)} n eps"
    assert above <= 60 * 8 * n * eps, f"expected the norm 1, got {1 + above}"
    return {"sums": worst / (n * eps), "steps": steps, "product": above / (60 * n * eps), "sinkhorn": plain}


def _off(W: Tensor) -> float:
    return max((W.sum(dim) - 1).abs().max().item() for dim in (-2, -1))


def gradients(n: int, size: float, dtype: torch.dtype) -> Result:
    """Return the largest errors of gradients, in n eps of the largest entry of G and of the gradient itself.

    Beside 60 digits.

    Args:
        n: Rows and columns.
        size: Of the logits.
        dtype: Of the matrices.
    """
    of_G, of_itself = 0.0, dict[str, float]()
    generator, unit = torch.Generator().manual_seed(1), n * torch.finfo(dtype).eps
    for name, stack in logits(n, size).items():
        for T in stack[:2].to(dtype):
            G = torch.randn(n, n, generator=generator, dtype=torch.float64).to(dtype)
            T.requires_grad_()
            (found,) = torch.autograd.grad(sp.functional.doubly_stochastic(T), T, G)
            expected = exact_gradient(T.detach(), G)
            error = (found.double() - expected).abs().max().item() / unit
            of_G = max(of_G, error / G.abs().max().item())
            of_itself[name] = max(of_itself.get(name, 0.0), error / expected.abs().max().item())
    return {"of G": of_G, "of itself": of_itself}


# What they cost ---------------------------------------------------------------------------------------


def times(kind: str, count: int) -> Result:
    """Return the seconds of a forward and backward pass, the least first, and the peak memory in matrices.

    The memory is that of a sixteenth of the matrices: a profile of all takes minutes.

    Args:
        kind: ``eager`` or ``compiled``.
        count: Of 4 x 4 matrices.
    """
    generator = torch.Generator().manual_seed(0)
    T, G = torch.randn(2, count, 4, 4, generator=generator)
    runs: dict[str, Callable[[], None]] = {}
    held: Result = {}
    for name, function in (("this", sp.functional.doubly_stochastic), ("Sinkhorn", sinkhorn)):
        called = torch.compile(function) if kind == "compiled" else function

        def run(called: Callable[[Tensor], Tensor] = called, part: int = count) -> None:
            X = T[:part].clone().requires_grad_()
            torch.autograd.grad(called(X), X, G[:part])

        held[f"{name}, peak"] = peak_bytes(partial(run, part=count // 16)) / (64 * (count // 16))
        run()
        runs[name] = run
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(3):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return held | {f"{name}, seconds": sorted(each) for name, each in seconds.items()}


# A network of four streams ----------------------------------------------------------------------------


def unconstrained(T: Tensor) -> Tensor:
    """Return the identity, and the logits that depend on the input.

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
    """Hyper-connections: each layer reads one mixture of four streams, and all streams are mixed."""

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
            nn.init.normal_(layer.weight, std=0.01)
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


def streams(name: str, seed: int, epochs: int) -> Result:
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
    with torch.random.fork_rng(), flushed_denormals():
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
            "sums": _off(products),
        }


# Tables -----------------------------------------------------------------------------------------------


def exactness() -> Table:
    """Return the errors of sums and gradients, the largest over all n, and the steps."""
    of_gradients = named("mixing", "gradient")
    groups: dict[str, list[tuple[Result, Result | None]]] = {}
    for name, r in named("mixing", "sums").items():
        groups.setdefault(name.rpartition(", n = ")[0], []).append((r, of_gradients.get(name)))
    rows = []
    for name, pairs in groups.items():
        found = [r for r, _ in pairs]
        slopes = [g for _, g in pairs if g is not None]
        rows.append(
            [
                marked(name, found + slopes),
                f"{max(r['sums'] for r in found):.2g}",
                f"{max(0.0, *(r['product'] for r in found)):.2g}",
                str(max(r["steps"] for r in found)),
                f"{max(r['sinkhorn'] for r in found):.1g}",
                f"{max(g['of G'] for g in slopes):.2g}",
                f"{max(max(g['of itself'].values()) for g in slopes):.2g}",
            ]
        )
    return [
        "",
        "sums, in n ε",
        "norm of a product of 60 above 1, in 60 n ε",
        "steps",
        "Sinkhorn's sums, 20 steps",
        "gradient, in n ε of the largest entry of G",
        "in n ε of its own",
    ], rows


def networks() -> Table:
    """Return what networks of four streams reach: medians over seeds, with ranges."""
    found: dict[str, list[Result]] = {}
    for name, result in named("mixing", "streams").items():
        found.setdefault(name.rsplit(", seed", 1)[0], []).append(result)
    rows = []
    for name, each in found.items():
        losses, accuracies, norms = (
            sorted(r[key] for r in each) for key in ("test loss", "accuracy", "largest norm")
        )
        rows.append(
            [
                marked(name, each),
                f"{statistics.median(losses):.3f} ({losses[0]:.3f} to {losses[-1]:.3f})",
                f"{statistics.median(accuracies):.3f}",
                f"{norms[0]:.5g} to {norms[-1]:.5g}",
                f"{max(r['sums'] for r in each):.1g}",
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
    for name, r in named("mixing", "times").items():
        for way in ("this", "Sinkhorn"):
            low, middle, high = r[f"{way}, seconds"]
            peak = f"{r[f'{way}, peak']:.0f}"
            rows.append([marked(f"{name}, {way}", r), f"{middle:.2f}", f"{low:.2f} to {high:.2f}", peak])
    return ["", "seconds, median", "of three", "peak memory, in sizes of T"], rows
