"""The weight of a constraint can be assigned to it: its own, its twin's, an averaged or a loaded one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import spectral_param as sp
from spectral_param.testing import Case, Shape, holder, originals, tolerance
from tests.promises.cases import CASES, FROM_THE_START, from_any
from tests.properties import FACTOR

# On both sides of each size at which a computation takes another way.
BORDERS = (16, 17, 32, 33, 95, 96, 127, 128)


def trained(case: Case, W: torch.Tensor, seed: int) -> torch.nn.Module:
    module = holder(case, W)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _ in range(2):
            for t in originals(module):
                t.add_(0.01 * torch.randn(t.shape, dtype=t.dtype, generator=generator))
            module.weight  # noqa: B018
    return module


def check_assigned(module: torch.nn.Module, W: torch.Tensor, what: str) -> None:
    try:
        module.weight = W.detach().clone()
    except sp.errors.InManifoldError as error:
        raise AssertionError(f"{what}: {error}") from error
    constraint = module.parametrizations["weight"][0]
    size = W.abs().max().item()
    if isinstance(
        constraint, sp.SchurForm
    ):  # The backward error of a Schur decomposition is relative to |W|.
        size = torch.linalg.matrix_norm(W).max().item()
    limit = tolerance(W.dtype, max(W.shape[-2:])) * max(1.0, size)
    if isinstance(constraint, sp.SpectralNorm):  # A norm that is tracked is known so well, says the page.
        limit += 1e-10 if W.dtype in (torch.float64, torch.complex128) else 5e-7
    error = (module.weight - W).abs().max().item()
    assert error <= limit, f"{what}: expected agreement to {limit:.1e}, got {error:.1e}"


def check_own_weights(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    module = trained(case, case.member(shape, dtype), seed=1)
    W = module.weight.detach().clone()
    assert module.parametrizations["weight"][0].in_manifold(W)
    check_assigned(module, W, "own weight")
    twin = copy.deepcopy(module)
    twin.weight  # noqa: B018
    check_assigned(module, twin.weight, "weight of a copy")
    loaded = copy.deepcopy(module)
    loaded.load_state_dict(module.state_dict())
    check_assigned(module, loaded.weight, "loaded weight")
    if not case.recovers or case.name == "Givens-two-layers":  # Of these only the present weight.
        return
    other = trained(case, case.member(shape, dtype), seed=2)
    if case not in FROM_THE_START:
        check_assigned(module, other.weight, "weight of a twin")
    averaged = AveragedModel(copy.deepcopy(other), use_buffers=True)
    averaged.update_parameters(other)
    averaged.update_parameters(other)
    check_assigned(other, averaged.module.weight, "averaged weight")


def every(cases, sizes) -> list:
    """Return each case with one of the sizes in turn, in a nightly run with all; the dtypes in turn.

    Of a variant, whose borders are those of its constraint, one of the smaller ones.
    """
    chosen = [
        (case, n, case.dtypes[(j + i) % len(case.dtypes)])
        for j, case in enumerate(cases)
        for i, n in enumerate(sizes)
        if FACTOR > 1 or i == j % (len(sizes) // 2 if case.variant else len(sizes))
    ]
    return [pytest.param(case, (n, n), dtype, id=f"{case.name}-{n}") for case, n, dtype in chosen]


@pytest.mark.parametrize(("case", "shape", "dtype"), every((*CASES, *FROM_THE_START), BORDERS))
@pytest.mark.turns(5)
def test_own_weights_on_both_sides_of_each_border(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    check_own_weights(case, shape, dtype)


TRAINED = {
    "growth": lambda: sp.LyapunovForm(0.8, growth=1.5),
    "growth in time": lambda: sp.LyapunovForm(abscissa=-0.3, growth=3.0),
    "gain": lambda: sp.BoundedGain(1.5, states=5),
    "block": lambda: sp.BlockTriangular([(7, sp.LyapunovForm(growth=1.4)), (2, sp.ScaledCayley())]),
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_weight_is_in_its_own_set(name) -> None:
    """The originals prove it, even where a search for others in its precision finds none."""
    torch.manual_seed(0)
    layer = sp.constrain(torch.nn.Linear(9, 9, bias=False), "weight", TRAINED[name]())
    target = 2 * torch.randn(9, 9)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        (layer.weight - target).square().sum().backward()
        optimizer.step()
    W, constraint = layer.weight.detach().clone(), layer.parametrizations["weight"][0]
    assert sp.violation(layer) == {"weight": 0.0}
    assert constraint.in_manifold(W)
    assert torch.equal(constraint.project(W), W)
    layer.weight = W
    torch.testing.assert_close(layer.weight.detach(), W, atol=1e-5, rtol=0)
    assert (constraint.distance(-2 * W) > 0).any()


NORMS = [case for case in (*CASES, *FROM_THE_START) if case.name.startswith(("SpectralNorm", "SpectralRad"))]


@pytest.mark.parametrize("case", NORMS, ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_own_weights_where_norms_and_radii_are_tracked(case: Case) -> None:
    first = NORMS.index(case)  # Sizes and dtypes by turns, in a nightly run all of them.
    for i, dtype in enumerate(case.dtypes):
        for n in (95, 96, 128):
            if FACTOR > 1 or (n == 96 and i == first % len(case.dtypes)):
                check_own_weights(case, (n, n), dtype)


@pytest.mark.parametrize("mode", ["equal", "at_most"])
@pytest.mark.parametrize("shape", [(96, 96), (200, 100), (100, 200), (3, 96, 97)])
def test_the_weight_of_the_last_steps_can_be_assigned(mode, shape) -> None:
    for seed in range(2 * FACTOR):
        torch.manual_seed(seed)
        layers = []
        for _ in range(2):
            layer = torch.nn.Module()
            layer.weight = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))
            layers.append(sp.constrain(layer, "weight", sp.SpectralNorm(2.5, mode)))
        assert layers[0].parametrizations["weight"][0].in_manifold(layers[1].weight)
        layers[0].weight = layers[1].weight.detach()
        with pytest.raises(sp.errors.InManifoldError):
            layers[0].weight = layers[1].weight.detach() * (1 + 1e-8)


def hostile(n: int) -> dict[str, torch.Tensor]:
    """Weights whose eigenvalues, or whose coordinates of least norm, are badly conditioned."""
    R, identity = torch.randn(n, n), torch.eye(n)
    units = torch.logspace(-4, 4, n)
    return {
        "Jordan": 0.95 * identity + torch.ones(n, n).triu(1).tril(1),
        "triangular": identity + 30 * R.triu(1),
        "badly scaled": units[:, None] * R / units,
    }


def often(case: Case) -> bool:
    """Whether a case is no variant, or carries a form or coordinates of another kind."""
    kinds = (
        "LyapunovForm-abscissa",
        "LyapunovForm-diagonal",
        "LyapunovForm-diagonal-abscissa",
    )
    return not case.variant or case.name in kinds


@pytest.mark.filterwarnings("ignore:LyapunovForm. expected a weight whose originals:UserWarning")
@pytest.mark.filterwarnings("ignore::spectral_param.errors.DegenerateEigenvalueWarning")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if often(case) else pytest.mark.nightly)
        for case in (*CASES, *FROM_THE_START)
    ],
)
def test_hostile_weights_are_not_enlarged_and_keep_their_own_value(case: Case) -> None:
    if torch.float32 not in case.dtypes:
        pytest.skip("Complex weights alone.")
    n = 6
    for name, given in hostile(n).items():
        module = holder(case, given if from_any(case) == case.init else given.abs())
        W = module.weight.detach().clone()
        assert W.isfinite().all(), name
        # Scaling enlarges nothing, and a shift by the abscissa, at most ‖W‖, adds n times the largest entry.
        # What does not depend on the size of the given weight, as an orthogonal one, has a norm below 10.
        assert W.abs().max() <= (n + 1) * given.abs().max() + 10, name
        module.weight = W
        # 5 %: an original that holds its own form or coordinates multiplies rounding by their condition.
        proven = isinstance(module.parametrizations["weight"][0], (sp.LyapunovForm, sp.BoundedGain))
        limit = 0.05 if proven else 1000 * torch.finfo(W.dtype).eps
        assert (module.weight - W).abs().max() <= limit * W.abs().max().clamp(min=1.0), name
