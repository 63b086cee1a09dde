"""What users do with the library, as a table by name: every constraint, network, function, analysis and fit.

A job takes a function that moves a tensor to a device, and returns numbers. All tensors that it makes itself
are on the host and have a dtype, so what PyTorch's defaults change is the library's doing.
"""

from __future__ import annotations

import copy
import functools
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spectral_param as sp
from spectral_param.testing import Case, Holder, holder
from tests.promises.cases import CASES, FROM_THE_START, checkered

To = Callable[[Any], Any]
Job = Callable[[To], Any]

HOST = {"dtype": torch.float32, "device": "cpu"}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers on the host."""
    return torch.randn(shape, dtype=dtype, device="cpu", generator=torch.Generator().manual_seed(seed))


def stable(n: int, radius: float = 0.9, seed: int = 0) -> Tensor:
    """A matrix of this spectral radius whose largest eigenvalue is far from the others, on the host."""
    W = 0.3 * normal(n, n, seed=seed) / n**0.5 + 1 / n
    return W * (radius / torch.linalg.eigvals(W).abs().max())


def rotation(n: int) -> Tensor:
    """A matrix of SO(n) without the eigenvalue -1, on the host."""
    A = 0.3 * normal(n, n, seed=1)
    return torch.linalg.matrix_exp(A - A.mT)


def gradients(result: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a sum over the result."""
    parts = [t for t in (result if isinstance(result, tuple) else (result,)) if t is not None]
    loss = sum((t.abs().square() if t.is_complex() else t.square()).sum() for t in parts)
    return torch.autograd.grad(loss, tensors, allow_unused=True)


# Constraints --------------------------------------------------------------------------------------


def trained(case: Case, shape: tuple[int, ...], to: To) -> Any:
    """Registration from outside, three steps, a checkpoint, a draw, a new start, the weight again."""
    dtype = torch.float32 if torch.float32 in case.dtypes else torch.complex64
    with torch.device("cpu"), _float32():  # Members are drawn by the table of cases.
        torch.manual_seed(0)
        W = case.member(shape, dtype) if case.outside is None else case.outside(shape, dtype)
    G = to(normal(*shape, seed=1, dtype=dtype))
    module = holder(case, to(W))
    weights, every = [module.weight.detach().clone()], list(module.parameters())
    optimizer = torch.optim.SGD(every, lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        (module.weight - G).abs().square().sum().backward()
        optimizer.step()
        weights.append(module.weight.detach().clone())
    constraint = module.parametrizations.weight[0]
    kept = io.BytesIO()
    torch.save({key: value.cpu() for key, value in module.state_dict().items()}, kept)
    kept.seek(0)
    clone = copy.deepcopy(module)
    clone.load_state_dict(torch.load(kept))
    weights.append(clone.weight.detach())
    torch.manual_seed(3)
    drawn = constraint.sample()
    torch.manual_seed(3)
    constraint.restart(*every)
    again = module.weight.detach().clone()
    module.weight = again
    return weights, drawn, again, module.weight.detach(), constraint.in_manifold(again), kept_values(every)


def kept_values(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Copies of the parameters' values."""
    return [p.detach().clone() for p in parameters]


def _float32() -> Any:
    """A context with PyTorch's usual default dtype."""

    class Usual:
        def __enter__(self) -> None:
            self.before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)

        def __exit__(self, *_: object) -> None:
            torch.set_default_dtype(self.before)

    return Usual()


def large(constraint: Callable[[], nn.Module], W: Tensor, to: To) -> Any:
    """Three steps of a weight that is followed from step to step."""
    module = sp.constrain(Holder(to(W)), "weight", constraint())
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    G, weights = to(normal(*W.shape, seed=1)), []
    for _ in range(4):
        optimizer.zero_grad()
        (module.weight - G).square().sum().backward()
        optimizer.step()
        weights.append(module.weight.detach().clone())
    return weights


def kernel(to: To, **options: Any) -> Any:
    """A convolution with a bounded norm, trained."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, padding="same", dtype=torch.float32, device="cpu", **options)
    conv = sp.constrain(to(conv), "weight", sp.SpectralNorm(0.8))
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    x = to(normal(2, 3, 8, 8))
    for _ in range(3):
        optimizer.zero_grad()
        conv(x).square().sum().neg().backward()
        optimizer.step()
    return conv.weight.detach(), conv(x).detach()


def gates(to: To) -> Any:
    """The gates of an LSTM."""
    torch.manual_seed(0)
    lstm = sp.constrain(
        to(nn.LSTM(3, 4, dtype=torch.float32, device="cpu")), "weight_hh_l0", sp.ScaledCayley()
    )
    return lstm.weight_hh_l0.detach(), gradients(lstm.weight_hh_l0, *lstm.parametrizations.parameters())


def chained(to: To) -> Any:
    """A pattern of signs, then a radius: the second one acts on the weight of the first."""
    pattern = torch.ones(6, 6, **HOST)
    module = sp.constrain(
        Holder(to(stable(6))), "weight", [sp.SignPattern(to(pattern)), sp.SpectralRadiusNorm(0.8)]
    )
    return module.weight.detach(), gradients(module.weight, *module.parameters())


def bounds(to: To) -> Any:
    """A bound for each matrix of a batch, changed in training."""
    W = torch.stack([stable(5, seed=seed) for seed in range(2)])
    constraint = sp.SpectralRadiusNorm(torch.tensor([0.5, 0.7], **HOST))
    module = sp.constrain(Holder(to(W)), "weight", constraint)
    first = module.weight.detach().clone()
    module.parametrizations.weight[0].radius = torch.tensor([0.3, 0.9], dtype=torch.float64, device="cpu")
    return first, module.weight.detach(), gradients(module.weight, *module.parameters())


def model(to: To) -> Any:
    """What is asked of a whole model, a new base, and removal."""
    torch.manual_seed(0)
    parts = [nn.Linear(4, 4, dtype=torch.float32, device="cpu") for _ in range(3)]
    net = to(nn.Sequential(*parts))
    sp.constrain(net, "0.weight", sp.SchurForm(delta=0.1))
    sp.constrain(net, "1.weight", sp.SkewExponential())
    empty = sp.penalty(net[2])
    penalty = sp.penalty(net)
    for parameter in net[1].parameters():
        parameter.data.add_(0.1)
    before = net[1].weight.detach().clone()
    sp.rebase(net)
    groups = sp.param_groups(net, lr=0.1)
    found = sp.num_free_parameters(net), [len(group["params"]) for group in groups]
    after = net[1].weight.detach().clone()
    sp.remove(net)
    return empty, penalty.detach(), before, after, found, net[0].weight.detach()


def without_memory(to: To) -> Any:
    """A layer that is built on the meta device, and then gets values."""
    layer = nn.Linear(4, 4, dtype=torch.float32, device="meta")
    sp.constrain(layer, "weight", sp.ScaledCayley())
    there = to(torch.zeros(1, **HOST)).device
    layer.to_empty(device=there)
    torch.manual_seed(0)
    if there.type == "cpu":
        layer.reset_parameters()
    else:
        layer.parametrizations.weight[0].restart(*layer.parametrizations.weight.parameters(recurse=False))
    return layer.weight.detach()


def checked(to: To) -> Any:
    """The conformance suite of one constraint."""
    if to(torch.zeros(1, **HOST)).device.type != "cpu":
        return None
    names = ("right_inverse", "state_dict", "deepcopy", "nan", "bad_input", "torch_func")
    case = Case(
        "suite", lambda shape: sp.SignPattern(checkered(shape[-1])), dtypes=(torch.float32, torch.float64)
    )
    for trial in sp.testing.conformance(case):
        if trial.shape == (4, 4) and str(trial.check) in names:
            trial()
    return None


# Networks -----------------------------------------------------------------------------------------

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "BlockRNN": lambda **o: sp.nn.BlockRNN(
        2, [(3, sp.ScaledCayley()), (2, sp.SpectralRadiusNorm())], num_layers=2, bidirectional=True, **o
    ),
    "ContractingRNN": lambda **o: sp.nn.ContractingRNN(2, 5, growth=3.0, **o),
    "ENRNN": lambda **o: sp.nn.ENRNN(2, 4, 3, **o),
    "EUNN": lambda **o: sp.nn.EUNN(2, 6, **o),
    "ExpRNN": lambda **o: sp.nn.ExpRNN(2, 5, **o),
    "GORU": lambda **o: sp.nn.GORU(2, 6, **o),
    "NNRNN": lambda **o: sp.nn.NNRNN(2, 6, **o),
    "ORNN": lambda **o: sp.nn.ORNN(2, 6, **o),
    "ScoRNN": lambda **o: sp.nn.ScoRNN(2, 5, **o),
    "ScuRNN": lambda **o: sp.nn.ScuRNN(2, 5, **o),
    "SpectralRNN": lambda **o: sp.nn.SpectralRNN(2, 6, **o),
    "StateSpace": lambda **o: sp.nn.StateSpace(2, 4, 3, **o),
    "StateSpace, gain": lambda **o: sp.nn.StateSpace(
        2, 4, 3, num_layers=2, gain=2.0, nonlinearity="relu", **o
    ),
    "URNN": lambda **o: sp.nn.URNN(2, 6, **o),
    "BlockRNNCell": lambda **o: sp.nn.BlockRNNCell(2, [(4, sp.ScaledCayley())], **o),
    "GORUCell": lambda **o: sp.nn.GORUCell(2, 4, **o),
    "StateSpaceCell": lambda **o: sp.nn.StateSpaceCell(2, 4, 3, gain=1.0, **o),
}
COMPLEX = {"EUNN", "ScuRNN", "URNN"}


def network(name: str, to: To) -> Any:
    """Two steps of training, of a network that a constructor has been told the device and the dtype of."""
    torch.manual_seed(0)
    dtype = torch.complex64 if name in COMPLEX else torch.float32
    net = to(NETWORKS[name](device="cpu", dtype=dtype))
    x = to(normal(3, 2) if name.endswith("Cell") else normal(40, 3, 2))
    optimizer, found = torch.optim.SGD(net.parameters(), lr=1e-2), []
    for _ in range(2):
        optimizer.zero_grad()
        result = net(x)
        output = result[0] if isinstance(result, tuple) else result
        (output.abs() if output.is_complex() else output).square().mean().backward()
        optimizer.step()
        found.append(output.detach())
    found += [p.grad for p in net.parameters() if p.grad is not None]
    if name == "ExpRNN":
        sp.rebase(net)
        found.append(net(x)[0].detach())
    if hasattr(net, "reset_parameters"):
        torch.manual_seed(1)
        net.reset_parameters()
        found += kept_values(list(net.parameters()))
    return found


def layers(to: To) -> Any:
    """Activations, a residual block, sequences of several lengths."""
    x = to(normal(3, 4))
    block = sp.nn.Residual(to(nn.Linear(4, 4, dtype=torch.float32, device="cpu")))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.fill_(0.1)
    torch.manual_seed(0)
    rnn = to(sp.nn.ScoRNN(4, 3, 2, device="cpu", dtype=torch.float32))
    lengths = torch.tensor([6, 4, 1], dtype=torch.int64, device="cpu")
    packed = to(nn.utils.rnn.pack_padded_sequence(normal(6, 3, 4), lengths))
    output, last = rnn(packed)
    activation = to(sp.nn.ModReLU(4, device="cpu", dtype=torch.float32))
    return sp.nn.MaxMin()(x), activation(x), block(x), output.data, last


def certificates(to: To) -> Any:
    """What a network proves of itself, and a system that is given."""
    torch.manual_seed(0)
    cell = to(sp.nn.StateSpaceCell(2, 4, 3, gain=1.0, device="cpu", dtype=torch.float32))
    n = cell.state_size
    system = (0.5 * np.eye(n), np.ones((n, 2)), np.ones((3, n)), None)
    cell.set_system(system) if hasattr(cell, "set_system") else None
    links = cell.parametrizations.weight
    weight = to(Holder(stable(4)))
    sp.constrain(weight, "weight", sp.LyapunovForm(0.95, growth=3.0))
    form = weight.parametrizations.weight
    return links[0].certificate(*links.parameters(recurse=False)), form[0].certificate(form.original)


# Functions ----------------------------------------------------------------------------------------


def derived(function: Callable[..., Any], *tensors: Tensor) -> Job:
    """A job: the function's value, and its gradients."""

    def job(to: To) -> Any:
        leaves = [to(t).clone().requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]
        result = function(*leaves)
        grown = result if isinstance(result, tuple) else (result,)
        differentiable = tuple(t for t in grown if t is not None and t.requires_grad)
        wanted = [t for t in leaves if t.requires_grad]
        return result, gradients(differentiable, *wanted) if differentiable else ()

    return job


def _functions() -> dict[str, Job]:
    f, W, tall = sp.functional, stable(6), normal(6, 3)
    skew = normal(6, 6) - normal(6, 6).mT
    gamma, theta, shear = normal(6, seed=2), normal(6, seed=3), 0.1 * normal(6, seed=4)
    pairs = torch.tensor([True, False, False, True, False, False], device="cpu")
    h, signs = normal(4, 6, seed=5), torch.ones(6, **HOST)
    x, h0, U = normal(30, 3, 2), normal(3, 6, seed=1), normal(6, 2, seed=2)
    v, phases = normal(2, 6, dtype=torch.complex64), normal(3, 6)
    order = torch.tensor([2, 0, 1, 5, 3, 4], dtype=torch.int64, device="cpu")
    return {
        "cayley": derived(f.cayley, skew),
        "cayley_inverse": derived(f.cayley_inverse, rotation(6)),
        "dominant_eigen": derived(lambda T: f.dominant_eigen(T).eigenvalue, W),
        "exponential": derived(f.exponential, skew),
        "exponential, large": derived(f.exponential, 1e4 * skew),
        "fourier_operator": derived(
            lambda v, p, o, h: f.fourier_operator(v, p, o)(h), v, phases, order, h + 0j
        ),
        "givens_operator": derived(lambda t, d, h: f.givens_operator(t, None, d)(h), normal(15), signs, h),
        "goru": derived(f.goru, x, h0, normal(18, 2), normal(12, 6), rotation(6)),
        "householder": derived(f.householder, tall),
        "householder_apply": derived(lambda V, h: f.householder_apply(h, *f.householder_factors(V)), tall, h),
        "householder_factors": derived(f.householder_factors, tall),
        "modrelu": derived(f.modrelu, normal(4, 6, dtype=torch.complex64), normal(6)),
        "rnn": derived(lambda *a: f.rnn(*a, nonlinearity="relu"), x, h0, U, rotation(6), normal(6)),
        "rnn, identity": derived(lambda *a: f.rnn(*a, nonlinearity="identity"), x, h0, U, W, normal(6)),
        "rnn, long": derived(
            lambda *a: f.rnn(*a, nonlinearity="identity"), normal(600, 1, 2), normal(1, 6), U, W
        ),
        "rnn, lengths": derived(
            lambda *a: f.rnn(*a, nonlinearity="tanh", batch_sizes=[3, 3, 2, 1]), normal(9, 2), h0, U, W
        ),
        "scaled_cayley": derived(f.scaled_cayley, skew, signs),
        "scaled_cayley, ill-conditioned": derived(f.scaled_cayley, 1e5 * skew, signs),
        "scaled_cayley, large": derived(
            f.scaled_cayley, 0.1 * (normal(200, 200) - normal(200, 200).mT), torch.ones(200, **HOST)
        ),
        "scaled_norm": lambda to: f.scaled_norm(to(W)),
        "schur_form": derived(
            lambda P, T, g, t, s, p: f.schur_form(P, T, g, t, s, p),
            rotation(6),
            W,
            gamma,
            theta,
            shear,
            pairs,
        ),
        "spectral_abscissa": derived(f.spectral_abscissa, W),
        "spectral_radius": derived(f.spectral_radius, W),
        "spectral_radius, large": derived(f.spectral_radius, stable(130)),
        "spectral_radius, batch": derived(f.spectral_radius, torch.stack([W, 2 * W, W.mT])),
    }


def _inits() -> dict[str, Job]:
    mask = torch.ones(6, 6, dtype=torch.bool, device="cpu")
    drawn: dict[str, Callable[..., Tensor]] = {
        "cayley_": sp.init.cayley_,
        "disc_": sp.init.disc_,
        "henaff_": sp.init.henaff_,
        "spectral_radius_": lambda W, **o: sp.init.spectral_radius_(W, 0.9, mask=mask, **o),
    }

    def job(fill: Callable[..., Tensor], to: To) -> Any:
        return fill(to(torch.empty(6, 6, **HOST)), generator=torch.Generator().manual_seed(0))

    return {
        **{name: functools.partial(job, fill) for name, fill in drawn.items()},
        "echo_state_": lambda to: sp.init.echo_state_(to(stable(6)), 0.9),
    }


def _analyses() -> dict[str, Job]:
    a, W = sp.analysis, stable(6)
    lower = functools.cache(lambda: a.lower_schur(stable(6)).Theta.float())
    delays = torch.diag(torch.ones(5, **HOST), -1)

    def rnn(to: To) -> nn.Module:
        torch.manual_seed(0)
        return to(nn.RNN(2, 4, dtype=torch.float32, device="cpu"))

    def net(to: To) -> nn.Module:
        torch.manual_seed(0)
        made: Any = {"dtype": torch.float32, "device": "cpu"}
        linear = [
            nn.Linear(3, 6, **made),
            nn.ReLU(),
            nn.Linear(6, 6, **made),
            nn.Tanh(),
            nn.Linear(6, 2, **made),
        ]
        return to(nn.Sequential(*linear).eval())

    def image(to: To) -> nn.Module:
        torch.manual_seed(0)
        made: Any = {"dtype": torch.float32, "device": "cpu"}
        parts = [
            nn.Conv2d(2, 3, 3, padding=1, **made),
            nn.BatchNorm2d(3, **made),
            nn.ReLU(),
            nn.ReflectionPad2d(1),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.LayerNorm(27, **made),
            nn.Linear(27, 4, **made),
            nn.LogSoftmax(dim=-1),
        ]
        return to(nn.Sequential(*parts).eval())

    def recorded(to: To) -> Any:
        recorder = a.Recorder(lambda: a.orthogonality_error(to(W)))
        empty = recorder.values
        recorder.record(3)
        return recorder.steps, recorder.values, empty.shape

    def constrained(to: To) -> Any:
        layer = to(nn.Linear(6, 6, dtype=torch.float32, device="cpu"))
        layer.weight.data = to(W.clone())
        return layer

    shape = (2, 4, 4)
    return {
        "certified_radius": lambda to: a.certified_radius(to(normal(3, 2)), net(to)),
        "certified_radius, lmi": lambda to: a.certified_radius(to(normal(3, 2)), net(to), method="lmi"),
        "departure_from_normality": lambda to: a.departure_from_normality(to(W)),
        "displacement": lambda to: a.displacement(constrained(to), "weight", sp.ScaledCayley()),
        "eigenvalues": lambda to: a.eigenvalues(to(W)),
        "fisher_memory": lambda to: a.fisher_memory(to(W), to(normal(6)), 5),
        "fisher_memory_bound": lambda to: a.fisher_memory_bound(to(delays), 5, sharp=True),
        "gradient_norm_bounds": lambda to: a.gradient_norm_bounds(to(W), 5, to(normal(6, 2))),
        "gradient_norms": lambda to: a.gradient_norms(rnn(to), to(normal(6, 3, 2))),
        "gradient_norms, state": lambda to: a.gradient_norms(rnn(to), to(normal(6, 3, 2)), wrt="state"),
        "h_infinity": lambda to: a.h_infinity(to(W), to(normal(6, 2)), to(normal(3, 6))),
        "kreiss_constant": lambda to: a.kreiss_constant(to(stable(2))),
        "lipschitz": lambda to: a.lipschitz(net(to)),
        "lipschitz, lmi": lambda to: a.lipschitz(net(to), method="lmi", steps=2),
        "lipschitz, image": lambda to: a.lipschitz(image(to), input_shape=shape, constants={"6": 2.0}),
        "loss_gradient_norms": lambda to: a.loss_gradient_norms(
            rnn(to), to(normal(6, 3, 2)), lambda output: output.square().sum()
        ),
        "lower_schur": lambda to: a.lower_schur(to(W)),
        "lyapunov_certificate": lambda to: a.lyapunov_certificate(to(W)),
        "lyapunov_certificate, diagonal": lambda to: a.lyapunov_certificate(to(W), metric="diagonal"),
        "orthogonality_error": lambda to: a.orthogonality_error(to(W)),
        "Recorder": recorded,
        "schur_eigenvalues": lambda to: a.schur_eigenvalues(to(lower())),
        "singular_values": lambda to: a.singular_values(to(W)),
        "spectral_summary": lambda to: a.spectral_summary(
            sp.constrain(constrained(to), "weight", sp.ScaledCayley())
        ),
        "subdiagonal_magnitudes": lambda to: a.subdiagonal_magnitudes(to(lower())),
        "transient_growth": lambda to: a.transient_growth(to(W), 5),
    }


def drawings(to: To) -> Any:
    """The data of every picture."""
    import matplotlib.pyplot as plt

    a, W = sp.analysis, to(stable(6))
    theta = a.lower_schur(W).Theta
    recorder = a.Recorder(lambda: a.singular_values(W))
    recorder.record(0)
    recorder.record(2)
    torch.manual_seed(0)
    rnn = to(nn.RNN(2, 4, dtype=torch.float32, device="cpu"))
    norms = a.gradient_norms(rnn, to(normal(6, 3, 2)))
    axes = [
        a.plot_eigenvalues(a.eigenvalues(W)),
        a.plot_singular_values(a.singular_values(W)),
        a.plot_recording(recorder),
        a.plot_schur_form(theta),
        a.plot_fisher_memory(a.fisher_memory(W, to(normal(6)), 5)),
        a.plot_transient_growth(a.transient_growth(W, 5)),
        a.plot_gradient_norms(norms),
    ]
    found = [np.asarray(line.get_xydata(), dtype=float) for ax in axes for line in ax.lines]
    plt.close("all")
    return found


# Dynamics -----------------------------------------------------------------------------------------


def recording(rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """States of a system of two, and its input."""
    rng = np.random.default_rng(0)
    u, x = rng.standard_normal((rows, 1)), np.zeros((rows, 2))
    A, B = np.array([[0.9, 0.2], [-0.2, 0.9]]), np.array([0.5, 1.0])
    for k in range(rows - 1):
        x[k + 1] = A @ x[k] + B * u[k, 0] + 0.01 * rng.standard_normal(2)
    return x, u


def _fits() -> dict[str, Job]:
    d = sp.dynamics
    x, u = recording()

    def tensors(to: To) -> tuple[Tensor, Tensor]:
        return to(torch.from_numpy(x).float()), to(torch.from_numpy(u).float())

    def estimator(*, arrays: bool = False, use_inputs: bool = True, **options: Any) -> Job:
        def job(to: To) -> Any:
            X, U = (x, u) if arrays else tensors(to)
            if not use_inputs:
                U = None
            fitted = d.StableLinearModel(**options).fit(X, U=U)
            found: list[Any] = [fitted.A_, fitted.predict(X, U=U), fitted.score(X, U=U)]
            if options.get("states") is None:
                module = fitted.to_module()
                found += [p.detach() for p in module.parameters()]
            return found

        return job

    def one_step(to: To) -> Any:
        X, U = tensors(to)
        fit = d.fit_stable(X[:-1], X[1:], U[:-1])
        return fit.A, fit.B, fit.error

    def ahead(to: To) -> Any:
        X, U = tensors(to)
        fit = d.fit_forecast(X, U, horizon=4)
        return fit.A, fit.B

    return {
        "fit_stable": one_step,
        "fit_stable, continuous": lambda to: (
            d.fit_stable(tensors(to)[0][:-1], tensors(to)[0].diff(dim=0), time="continuous").A
        ),
        "fit_forecast": ahead,
        "StableLinearModel": estimator(),
        "StableLinearModel, arrays": estimator(arrays=True),
        "StableLinearModel, horizon": estimator(horizon=4, offset=True),
        "StableLinearModel, states": estimator(states=2, use_inputs=True),
        "StableLinearModel, delays": estimator(delays=3, rank=4, use_inputs=False),
    }


JOBS: dict[str, Job] = {
    **{
        f"constraint: {case.name}": functools.partial(
            trained, case, (6, 6) if "BlockTri" not in case.name else (5, 5)
        )
        for case in (*CASES, *FROM_THE_START)
    },
    "constraint: SpectralRadiusNorm, followed": functools.partial(large, sp.SpectralRadiusNorm, stable(130)),
    "constraint: SpectralNorm, followed": functools.partial(large, sp.SpectralNorm, 3 * normal(70, 66)),
    "constraint: Cayley of a tall weight": functools.partial(large, sp.ScaledCayley, normal(64, 16)),
    "constraint: SkewExponential of a tall weight": functools.partial(
        large, sp.SkewExponential, normal(64, 16)
    ),
    "constraint: kernel": kernel,
    "constraint: circular kernel": functools.partial(kernel, padding_mode="circular"),
    "constraint: gates": gates,
    "constraint: a chain": chained,
    "constraint: bounds of a batch": bounds,
    "model": model,
    "model: built without memory": without_memory,
    "testing": checked,
    **{f"network: {name}": functools.partial(network, name) for name in NETWORKS},
    "network: layers": layers,
    "network: certificates": certificates,
    **{f"functional: {name}": job for name, job in _functions().items()},
    **{f"init: {name}": job for name, job in _inits().items()},
    **{f"analysis: {name}": job for name, job in _analyses().items()},
    "analysis: pictures": drawings,
    **{f"dynamics: {name}": job for name, job in _fits().items()},
}


# Other modes of a constraint, which take long for what they find.
VARIANTS = {f"constraint: {case.name}" for case in (*CASES, *FROM_THE_START) if case.variant}


def parametrized() -> list[Any]:
    """The names of the jobs for pytest, those of variants for the night."""
    return [pytest.param(name, marks=pytest.mark.nightly if name in VARIANTS else ()) for name in JOBS]


def numbers(found: Any) -> list[Any]:
    """The numbers of a result, in order, on the host."""
    if isinstance(found, Tensor):
        return [found.detach().cpu()]
    if isinstance(found, np.ndarray):
        return [torch.from_numpy(np.ascontiguousarray(found))]
    if isinstance(found, dict):
        return [n for value in found.values() for n in numbers(value)]
    if isinstance(found, (list, tuple)):
        return [n for value in found for n in numbers(value)]
    return [] if found is None else [found]


@functools.cache
def on_the_host(name: str) -> list[Any]:
    """The numbers of a job on the host, under PyTorch's usual defaults."""
    torch.manual_seed(0)
    return numbers(JOBS[name](lambda thing: thing))


def same(found: list[Any], expected: list[Any]) -> bool:
    """Whether all numbers have the same bits."""
    return len(found) == len(expected) and all(
        (torch.equal(a.nan_to_num(), b.nan_to_num()) and a.dtype == b.dtype)
        if isinstance(a, Tensor)
        else a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))
        for a, b in zip(found, expected, strict=True)
    )
