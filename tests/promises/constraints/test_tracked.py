"""Followed from step to step, the radius and the norm are those of LAPACK at every step of a training.

Each training is made to mislead what follows it: the leader comes from outside of all that was known, ties,
jumps, is nearly defective, or is moved by an entry of any small size.
"""

from __future__ import annotations

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel

import spectral_param as sp
from spectral_param.errors import DegenerateEigenvalueWarning
from spectral_param.testing import Holder
from tests import matrices
from tests.paths import Paths
from tests.properties import examples

N, STEPS = 96, 22
PRECISIONS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.complex128: 1e-12}


def constrained(n, dtype, kind=sp.SpectralRadiusNorm, m=None, **kwargs):
    kwargs.setdefault("solver", "tracking")
    layer = Holder(torch.eye(m or n, n, dtype=dtype))
    return sp.constrain(layer, "weight", kind(mode="equal", **kwargs))


def written(layer, T):
    """Write T as an optimizer does, and return the weight."""
    with torch.no_grad():
        layer.parametrizations.weight.original.copy_(T)
        return layer.weight


def size_read(layer, T):
    """Return what T is divided by."""
    W = written(layer, T)
    double = torch.complex128 if W.is_complex() else torch.float64
    unit = 2.0 ** torch.frexp(T.abs().max())[1].item()
    return (torch.linalg.norm(T.to(double) / unit) / torch.linalg.norm(W.to(double))).item() * unit


def assert_radius(layer, T, tolerance, step):
    found = size_read(layer, T)
    double = T.to(torch.complex128 if T.is_complex() else torch.float64).numpy()
    expected = np.abs(np.linalg.eigvals(double)).max()
    error = abs(found / expected - 1)
    if error > tolerance:
        # LAPACK in this precision cannot do better: first order in the condition number.
        sensitivity = np.linalg.norm(double, 2) / expected * matrices.dominant_condition(double)
        assert error <= tolerance * sensitivity, f"step {step}"


# The radius ---------------------------------------------------------------------------------------


class Trajectories(Paths):
    """T at each step, by name. All but the drift have a spectrum that was put in by hand."""

    def __init__(self, dtype, seed=0):
        super().__init__(N, dtype, seed)
        self.leader = self.ginibre()[:48, :48] * 0.3
        self.leader[0, :] = 0
        self.leader[0, 0] = 1
        self.crowd = np.linalg.qr(self.ginibre()[48:, 48:])[0]
        self.targets = [
            self.with_head(np.eye(1)),
            self.with_head(3 * np.eye(1)),
            self.ginibre(),
            self.orthogonal(),
        ]

    def overtaken(self, t, speed=0.0303):
        return super().overtaken(t, speed)

    def near_defective(self, t):
        return self.with_head(np.array([[1.0, 1.0], [1e-3 * (1 - t / 20) ** 2, 1.0]]))

    def collision(self, t):
        return self.with_head(np.array([[1.0, 1e-2], [4e-4 * (t - 20), 1.0]]))

    def jump(self, t):
        return self.targets[(t // 7) % 4] + 1e-4 * t * self.targets[2]

    def appearing(self, t):
        return self.with_head(np.eye(1), np.eye(1) * (0.1 if t % 14 < 7 else 1.3))

    def tie(self, t):
        """+1 and -1 lead in turn, by less and less."""
        return self.with_head(np.eye(1), -np.eye(1) * (1 + (-1) ** t * 10.0 ** -(t / 2)))

    def decoupled_crowd(self, t):
        """Many eigenvalues outgrow the leader in one step, in a block that it knows nothing of."""
        T = np.zeros_like(self.crowd, shape=(N, N))
        T[:48, :48] = self.leader
        T[48:, 48:] = self.crowd * (0.3 if t % 20 < 10 else 1.3)
        return T

    def hidden_crowd(self, t):
        return self.Q @ self.decoupled_crowd(t) @ self.Q.conj().T

    def chain(self, t):
        """An entry of 0.03 moves eigenvalues from 0 to 1.18: what T has moved by says nothing of them."""
        return self.with_head(np.eye(1), self.closed(2.0, 0.03 if t % 9 == 5 else 0.0))

    def own_chain(self, t):
        """The same, where the other directions are not coupled to it at all."""
        T = np.diag(0.3 * self.rest).astype(complex if self.complex else float)
        T[0, 0] = 1
        T[1:9, 1:9] = self.closed(2.0, 0.03 if t % 9 == 5 else 0.0)
        return T * (1 + 1e-6 * t)

    def closed(self, strength, closing):
        C = np.diag(np.full(7, strength), 1)
        C[-1, 0] = closing
        return C


NAMES = [
    "overtaken",
    "drift",
    "near_defective",
    "collision",
    "jump",
    "appearing",
    "tie",
    "decoupled_crowd",
    "hidden_crowd",
    "crowded",
    "chain",
    "own_chain",
]


# What is defective in float32 warns, and its radius is right all the same.
@pytest.mark.filterwarnings("ignore::spectral_param.errors.DegenerateEigenvalueWarning")
@pytest.mark.kernels
@pytest.mark.parametrize(("name", "dtype"), [*zip(NAMES, itertools.cycle(PRECISIONS))])
@pytest.mark.turns(2)
def test_every_step_agrees_with_float64_lapack(name, dtype) -> None:
    layer, trajectory = constrained(N, dtype), getattr(Trajectories(dtype), name)
    for t in range(STEPS):
        assert_radius(layer, torch.from_numpy(np.asarray(trajectory(t))).to(dtype), PRECISIONS[dtype], t)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::spectral_param.errors.DegenerateEigenvalueWarning")
@examples(6)
@given(
    first=st.sampled_from(NAMES),
    then=st.sampled_from(NAMES),
    dtype=st.sampled_from(list(PRECISIONS)),
    exponent=st.sampled_from([-66, -20, 0, 3, 66]),
    seed=st.integers(0, 10**6),
)
@example("overtaken", "hidden_crowd", torch.float32, -66, 0)
@example("crowded", "tie", torch.float64, 66, 0)
def test_one_training_after_another_in_any_units(first, then, dtype, exponent, seed) -> None:
    trajectories = Trajectories(dtype, seed)
    layer = constrained(N, dtype)
    for t in range(16):
        T = getattr(trajectories, first if t < 8 else then)(t + seed % 12) * 2.0**exponent
        assert_radius(layer, torch.from_numpy(np.asarray(T)).to(dtype), PRECISIONS[dtype], t)


@pytest.mark.parametrize(
    ("dtype", "rate"), [(torch.float32, 0.02), (torch.float64, 0.05), (torch.float32, 0.08)]
)
@pytest.mark.turns(3)
def test_an_eigenvalue_that_comes_from_outside(dtype, rate) -> None:
    """T is normal and moves slowly, so little work does, and the newcomer is in nothing that was kept."""
    Q = torch.linalg.qr(torch.randn(120, 120, dtype=torch.float64)).Q
    spectrum = torch.linspace(0.7, 0.05, 120, dtype=torch.float64)
    spectrum[0] = 1.0
    layer = constrained(120, dtype)
    for t in range(10, 20 + round(1.2 / rate)):
        spectrum[21] = min(0.05 + rate * max(0, t - 20), 1.4)
        found = size_read(layer, ((Q * spectrum) @ Q.mT).to(dtype))
        assert found == pytest.approx(spectrum.max().item(), rel=40 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("jump", [1.0001, 1.01, 1.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_eigenvalue_that_jumps_up_outside_is_found_at_once(dtype, jump) -> None:
    Q = torch.linalg.qr(torch.randn(120, 120, dtype=torch.float64)).Q
    spectrum = torch.linspace(0.7, 0.05, 120, dtype=torch.float64)
    spectrum[0] = 1.0
    layer = constrained(120, dtype)
    for t in range(8):
        spectrum[50] = -jump if t >= 5 else 0.3
        found = size_read(layer, ((Q * spectrum) @ Q.mT).to(dtype))
        assert found == pytest.approx(max(1.0, -spectrum[50].item()), rel=40 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("overtaken", torch.float32, 2e-2),
        ("appearing", torch.complex128, 1e-6),
        ("drift", torch.float64, 1e-6),
    ],
)
@pytest.mark.turns(3)
def test_gradients_agree_with_lapacks(name, dtype, tolerance) -> None:
    trajectory = getattr(Trajectories(dtype), name)
    layers = [constrained(N, dtype, solver=solver) for solver in ("tracking", "dense")]
    compared = 0
    for t in range(STEPS):
        T = torch.from_numpy(trajectory(t)).to(dtype)
        G = torch.randn(N, N, dtype=dtype)
        gradients = []
        for layer in layers:
            written(layer, T)
            original = layer.parametrizations.weight.original
            gradients.append(torch.autograd.grad((layer.weight * G).real.sum(), original)[0])
        moduli = np.unique(np.abs(np.linalg.eigvals(T.numpy().astype(complex))).round(9))
        if moduli[-2] > 0.998 * moduli[-1]:  # Each may take another of two leaders.
            continue
        compared += 1
        difference = torch.linalg.matrix_norm(gradients[0] - gradients[1])
        assert difference <= tolerance * torch.linalg.matrix_norm(gradients[1]), f"step {t}"
    assert compared > 3 * STEPS // 4


def test_gradient_of_a_followed_radius_passes_gradcheck() -> None:
    constraint = sp.SpectralRadiusNorm(solver="tracking").eval()
    T = torch.randn(18, 18, dtype=torch.float64, requires_grad=True)
    T.data[0] += 1  # Separates an eigenvalue.
    assert torch.autograd.gradcheck(constraint, (T,), fast_mode=True)


def test_what_is_not_finite_in_between() -> None:
    trajectory = Trajectories(torch.float32)
    layer = constrained(N, torch.float32)
    for t in range(12):
        T = torch.from_numpy(trajectory.overtaken(t)).float()
        if t % 5 == 3:
            T[1, 2] = (torch.nan, torch.inf)[t % 2]
            assert written(layer, T).isnan().any()
        else:
            assert_radius(layer, T, 1e-5, t)


def test_defective_matrix_is_left_to_lapack() -> None:
    T = torch.zeros(N, N)
    T[:2, :2] = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    layer = constrained(N, torch.float32)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for t in range(4):
            size_read(layer, T * (1 + 0.1 * t))
    assert {w.category for w in record} == {DegenerateEigenvalueWarning}


def test_matrices_of_a_batch_by_themselves() -> None:
    batch = torch.randn(3, 40, 40)
    together = sp.SpectralRadiusNorm(solver="tracking")
    alone = [sp.SpectralRadiusNorm(solver="tracking") for _ in range(3)]
    for t in range(6):
        W = together(T := batch + 0.01 * t)
        for i in range(3):
            assert torch.equal(W[i], alone[i](T[i]))


def test_auto_says_what_it_chose() -> None:
    for n, chosen in ((64, "dense"), (128, "tracking")):
        layer = sp.constrain(torch.nn.Linear(n, n), "weight", sp.SpectralRadiusNorm())
        assert f"solver='auto: {chosen}'" in repr(layer)


# The norm -----------------------------------------------------------------------------------------


def singular(m, n, dtype):
    X = torch.randn(m, n, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    U, _, Vh = torch.linalg.svd(X, full_matrices=False)
    return lambda sigma: ((U * sigma.to(X.dtype)) @ Vh).to(dtype)


def assert_norm(layer, T, expected, step):
    # What the bound may exceed the norm by, and what rounding of the entries adds: ‖E‖ ≤ eps √min(m, n) ‖W‖.
    tolerance = 2e-6 if torch.finfo(T.dtype).eps > 1e-10 else 2e-10
    assert size_read(layer, T) == pytest.approx(expected, rel=tolerance), f"step {step}"


def spectra(name, n):
    """Yield singular values of each step, by name."""
    sigma = torch.linspace(1, 0.01, n, dtype=torch.float64)
    if name == "from outside":  # From step to step, until it leads.
        for step in range(12):
            sigma[-1] = 0.25 * step
            yield sigma
    elif name == "slowly from outside":  # Each move is small enough for an old bound. Their sum is not.
        sigma[:12] = torch.linspace(1, 0.8, 12)
        sigma[12:] = torch.linspace(0.5, 0.1, n - 12)
        for _ in range(100):
            sigma[-1] += 0.0125
            yield sigma
    elif name == "slowly from outside, with a gap":
        sigma[1:] = torch.linspace(0.5, 0.1, n - 1)
        for _ in range(60):
            sigma[-1] += 0.02
            yield sigma
    elif name == "jumps":
        for step in range(18):
            sigma[-1] = (0.01, 1.001, 0.01, 1.1, 0.01, 3.0)[step // 3]
            yield sigma
    elif name == "plateau":  # All equal, and a gap opens.
        for step in range(8):
            yield torch.ones(n).double() if step < 3 else torch.linspace(1 + 0.1 * step, 0.1, n).double()
    elif name == "tie":
        sigma[1:3] = 1
        for step in range(8):
            sigma[1] = 1 + (-1) ** step * 10.0 ** -(step / 2)
            yield sigma


SPECTRA = [
    "from outside",
    "slowly from outside",
    "slowly from outside, with a gap",
    "jumps",
    "plateau",
    "tie",
]


@pytest.mark.kernels
@examples(8)
@given(
    name=st.sampled_from(SPECTRA),
    shape=st.sampled_from([(200, 100), (150, 150), (96, 180)]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.complex64]),
    exponent=st.sampled_from([-60, -38, -14, 0, 20, 60]),
    seed=st.integers(0, 10**6),
)
@example("from outside", (200, 100), torch.float32, 0, 0)
@example("slowly from outside", (200, 100), torch.float32, 0, 0)
@example("slowly from outside, with a gap", (200, 100), torch.float32, 0, 0)
@example("jumps", (200, 100), torch.float32, -38, 0)
@example("plateau", (140, 120), torch.float64, 0, 0)
def test_the_norm_of_every_step_is_the_exact_one(name, shape, dtype, exponent, seed) -> None:
    torch.manual_seed(seed)
    m, n = shape
    make, layer = singular(m, n, dtype), constrained(n, dtype, sp.SpectralNorm, m)
    for step, sigma in enumerate(spectra(name, min(m, n))):
        assert_norm(layer, make(sigma * 2.0**exponent), sigma.max().item() * 2.0**exponent, step)


@pytest.mark.parametrize(("move", "gap"), [(1e-6, 1.0), (1e-3, 1.1), (1e-1, 1.0), (3e-3, 1.3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float64])
def test_the_norm_along_a_random_walk(dtype, move, gap) -> None:
    """A Gaussian matrix has many singular values near the largest one, or one is made apart."""
    double = torch.complex128 if dtype.is_complex else torch.float64
    U, sigma, Vh = torch.linalg.svd(torch.randn(130, 100, dtype=double) / 10, full_matrices=False)
    sigma[0] *= gap
    T = ((U * sigma) @ Vh).to(dtype)
    layer = constrained(100, dtype, sp.SpectralNorm, 130)
    for step in range(14):
        exact = torch.linalg.svdvals(T.to(double))[0].item()
        assert_norm(layer, T, exact, step)
        T = T + move * torch.randn(130, 100, dtype=dtype) / 10


def test_matrices_that_have_no_norm_to_follow() -> None:
    layer = constrained(100, torch.float32, sp.SpectralNorm, 120)
    good = torch.randn(120, 100) / 10
    for T in (torch.full((120, 100), torch.nan), 1e-30 * torch.ones(120, 100), good):
        for _ in range(2):
            if T.isfinite().all():
                assert_norm(layer, T, torch.linalg.svdvals(T.double())[0].item(), 0)
            else:
                assert written(layer, T).isnan().any()
            T = 1.01 * T


@pytest.mark.parametrize("kind", [sp.SpectralRadiusNorm, sp.SpectralNorm])
def test_the_random_state_of_the_user_is_neither_read_nor_changed(kind) -> None:
    T, found = torch.randn(N, N), []
    for seed in range(2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        layer = Holder(T.clone())
        sp.constrain(layer, "weight", kind(mode="equal", solver="tracking"))
        found.append([written(layer, T + step * 1e-3) for step in range(3)])
        assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


# Checkpoints, copies and graphs -------------------------------------------------------------------


KINDS = [sp.SpectralRadiusNorm, sp.SpectralNorm]


def linear(kind=sp.SpectralRadiusNorm, n=N, dtype=torch.float32, solver="tracking", mode="equal"):
    return sp.constrain(nn.Linear(n, n, bias=False, dtype=dtype), "weight", kind(mode=mode, solver=solver))


def trained(layer, steps=4, seed=0):
    """Train a layer, whose leading eigenvalue is apart from the others, so that it is followed."""
    generator = torch.Generator().manual_seed(seed)
    original = layer.parametrizations.weight.original
    with torch.no_grad():
        original[0, 0] += 2
    for _ in range(steps):
        x = torch.randn(8, len(original), generator=generator, dtype=original.dtype)
        layer.zero_grad()
        (layer(x) - x.flip(-1)).square().mean().backward()
        with torch.no_grad():
            original -= 0.5 * original.grad
    return layer


def moved(layer):
    """Move the original a little, after which what is followed is used."""
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(1.01).add_(1e-3)
    return layer


def assert_exact(layer, tolerance=1e-5):
    W = layer.weight.detach().double()
    is_norm = isinstance(layer.parametrizations.weight[0], sp.SpectralNorm)
    size = torch.linalg.svdvals(W)[0] if is_norm else torch.linalg.eigvals(W).abs().max()
    assert size.item() == pytest.approx(1, abs=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_has_nothing_beside_the_weight(kind) -> None:
    layer, other = trained(linear(kind)), linear(kind)
    state = layer.state_dict()
    assert list(state) == ["parametrizations.weight.original"]
    other.load_state_dict(state)
    torch.testing.assert_close(other.weight, layer.weight)
    assert_exact(moved(other))
    with pytest.raises(RuntimeError, match="another"):
        other.load_state_dict(state | {"parametrizations.weight.0.another": torch.zeros(1)})


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_fit_other_solvers_and_those_without_a_state(kind) -> None:
    layer = trained(linear(kind))
    dense = linear(kind, solver="dense")
    dense.load_state_dict(layer.state_dict())
    torch.testing.assert_close(dense.weight, layer.weight)
    W = 3 * torch.linalg.qr(torch.randn(N, N)).Q
    layer.load_state_dict({"parametrizations.weight.original": W})
    torch.testing.assert_close(layer.weight, W / 3, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_averaged_models_keep_the_constraint(use_buffers) -> None:
    layer = linear(mode="latched")
    averaged = AveragedModel(layer, use_buffers=use_buffers)
    for _ in range(3):
        with torch.no_grad():
            layer.parametrizations.weight.original.mul_(1.1).add_(0.01 * torch.randn(N, N))
        layer(torch.randn(2, N)).sum().backward()
        averaged.update_parameters(layer)
        T = averaged.module.parametrizations.weight.original.detach()
        latched = averaged.module.parametrizations.weight[0].latched
        rho = torch.linalg.eigvals(T.double()).abs().max().item()
        expected = T / rho if rho > 1 or latched > 0.5 else T
        torch.testing.assert_close(averaged.module.weight, expected.float(), rtol=1e-4, atol=1e-6)
    restored = linear(mode="latched")
    restored.load_state_dict(averaged.module.state_dict())
    torch.testing.assert_close(restored.weight, averaged.module.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_an_assigned_weight_a_conversion_and_a_copy(kind) -> None:
    layer = trained(linear(kind))
    clone = copy.deepcopy(layer)
    torch.testing.assert_close(moved(layer).weight, moved(clone).weight, rtol=1e-4, atol=1e-6)
    clone.weight = W = torch.linalg.qr(torch.randn(N, N)).Q
    torch.testing.assert_close(clone.weight, W, rtol=1e-4, atol=1e-5)
    assert_exact(layer.double(), 1e-9)
    assert_exact(moved(layer), 1e-9)
    assert_exact(layer.bfloat16(), 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_after_a_first_read_in_inference_mode(kind) -> None:
    layer, other = linear(kind), linear(kind, solver="dense")
    other.load_state_dict(layer.state_dict())
    with torch.inference_mode():
        layer.weight  # noqa: B018
    gradients = []
    for each in (layer, other):
        original = moved(each).parametrizations.weight.original
        gradients.append(torch.autograd.grad(each.weight[0].sum(), original)[0])
    torch.testing.assert_close(*gradients, rtol=2e-2, atol=1e-2 * gradients[1].abs().max().item())


@pytest.mark.nightly
def test_compiled_steps_are_the_eager_ones() -> None:
    layer = trained(linear(mode="latched"), steps=1)
    reference = copy.deepcopy(layer)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, eps = torch.randn(3, N), torch.finfo(torch.float32).eps
    for _ in range(5):
        results = []
        for each, owner in ((compiled, layer), (reference, reference)):
            owner.zero_grad()
            output = each(x)
            output.square().sum().backward()
            results.append((output.detach(), owner.parametrizations.weight.original.grad))
            moved(owner)
        (output, gradient), (expected_output, expected_gradient) = results
        torch.testing.assert_close(output, expected_output, rtol=1e-3, atol=1e-5)
        # Each is right up to 16 √eps.
        error = torch.linalg.matrix_norm(gradient - expected_gradient)
        assert error <= 32 * eps**0.5 * torch.linalg.matrix_norm(expected_gradient)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", ["equal", "at_most"])
@pytest.mark.turns(2)
def test_traced_modules_follow_the_parameter(mode) -> None:
    layer = linear(mode=mode)
    x = torch.randn(3, N)
    traced = torch.jit.trace(layer, (x,), check_trace=False)
    for factor in (1.0, 3.0, 0.5):
        with torch.no_grad():
            layer.parametrizations.weight.original.mul_(factor).add_(0.01 * torch.randn(N, N))
        torch.testing.assert_close(traced(x), layer(x), rtol=1e-4, atol=1e-4)
        gradients = [torch.autograd.grad(f(x).square().sum(), layer.parameters())[0] for f in (traced, layer)]
        # Both follow the vectors to the root of working precision, each by itself.
        torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-2 * gradients[1].abs().max().item())
