"""Every constraint that can be held after the step keeps one contract; the others are refused."""

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import spectral_param as sp
from spectral_param.testing import Case, Holder, Shape, tolerance
from tests.messages import refused
from tests.promises.cases import CASES

REFUSED = {
    "BoundedGain",
    "BoundedGain-radius",
    "FourierUnitary",
    "Givens-two-layers",
    "Householder-two",
    "DoublyStochastic",
    "DoublyStochastic-floor",
    "LyapunovForm",
    "LyapunovForm-abscissa",
    "LyapunovForm-abscissa-growth",
    "LyapunovForm-contraction",
    "LyapunovForm-growth",
    "SchurForm-abscissa",
    "SchurForm-bounded",
    "SchurForm-paper",
    "SpectralRadiusNorm-latched",
    "Stochastic",
    "Stochastic-floor",
}
ORTHONORMAL = {"ScaledCayley", "SkewExponential", "Householder", "Givens"}
# Which of the weights below have no multiple of the radius or norm that is asked for.
CANNOT_BE_SCALED = {
    "SpectralRadiusNorm": {"zero", "nilpotent"},
    "SpectralRadiusNorm-radius": {"zero", "nilpotent"},
    "SpectralRadiusNorm-absolute": {"zero", "nilpotent"},
    "FrobeniusNorm": {"zero"},
    "FrobeniusNorm-rows": {"zero", "nilpotent"},
    "SpectralNorm": {"zero"},
    "SpectralNorm-tracking": {"zero"},
    "BlockTriangular": {"zero", "nilpotent"},
}


def pairs() -> list[object]:
    """Each shape and each dtype of a case that is held; by default its first and its last ones."""
    found: list[object] = []
    for case in CASES:
        if case.name in REFUSED:
            continue
        shapes = [*case.shapes, *case.rectangles]
        count = max(len(shapes), len(case.dtypes))
        for i in range(count):
            shape, dtype = shapes[i % len(shapes)], case.dtypes[i % len(case.dtypes)]
            is_slow = "diagonal" in case.name
            marks = [pytest.mark.nightly] if i % (count if is_slow else count - 1) else []
            name = f"{case.name}-{shape}-{str(dtype)[6:]}"
            found.append(pytest.param(case, shape, dtype, id=name, marks=marks))
    return found


every_pair = pytest.mark.parametrize(("case", "shape", "dtype"), pairs())


def held(case: Case, W: Tensor) -> tuple[Holder, torch.optim.Optimizer]:
    module = Holder(W.clone())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    gates, shape = case.gates(tuple(W.shape)), tuple(W.shape)
    return sp.constrain(module, "weight", case.make(shape), gates=gates, optimizer=optimizer), optimizer


def outside(case: Case, W: Tensor) -> float:
    """How far a weight is outside, over the rounding errors that it may have."""
    W = W.detach()
    limit = tolerance(W.dtype, W.shape[-1]) * max(1.0, float(W.abs().max()))
    return float(case.violation(W).max()) / limit


def train(module: Holder, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    W = module.weight
    (W - torch.randn_like(W)).abs().square().sum().backward()
    optimizer.step()


@every_pair
def test_the_weight_is_in_the_set_after_each_step_and_stays_what_it_is(case, shape, dtype) -> None:
    module, optimizer = held(case, torch.randn(shape, dtype=dtype))
    weight, memory = module.weight, module.weight.data_ptr()
    for _ in range(3):
        assert outside(case, module.weight) <= 1
        assert sp.violation(module) == {"weight": 0.0}
        before = module.weight.detach().clone()
        optimizer.zero_grad()
        optimizer.step()  # A member keeps its bits.
        assert torch.equal(module.weight, before)
        train(module, optimizer)
        if min(shape[-2:]) > 1:
            assert not torch.equal(module.weight, before)
    assert module.weight is weight
    assert (weight.data_ptr(), weight.dtype, type(weight)) == (memory, dtype, nn.Parameter)
    assert list(module.state_dict()) == ["weight"]


def degenerate(shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    W = torch.randn(shape, dtype=dtype)
    upper = torch.zeros_like(W)
    rows, n = shape[-2:]
    for start in range(0, rows, n):
        block = upper[..., start : start + n, :]
        block.copy_(torch.ones_like(block).triu(1))
    equal = W.clone()
    equal[..., 0] = equal[..., -1]
    scales = torch.logspace(-4, 4, n, dtype=W.real.dtype)
    return {
        "zero": 0 * W,
        "nilpotent": upper,
        "ones": torch.ones_like(W),
        "equal columns": equal,
        "huge": 1e15 * W,
        "tiny": 1e-15 * W,
        "badly balanced": W * scales,
    }


@every_pair
@pytest.mark.turns(3)
def test_whatever_a_step_leaves_is_put_back(case, shape, dtype) -> None:
    module, optimizer = held(case, torch.randn(shape, dtype=dtype))
    for name, W in degenerate(shape, dtype).items():
        with torch.no_grad():
            module.weight.copy_(W)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sp.errors.DegenerateEigenvalueWarning)
            optimizer.step()
        name = name if bool(W.any()) else "zero"
        if name not in CANNOT_BE_SCALED.get(case.name, ()):
            assert outside(case, module.weight) <= 1, name
        assert bool(module.weight.isfinite().all()), name


@every_pair
@pytest.mark.turns(3)
def test_the_step_takes_the_place_of_any_other_projection(case, shape, dtype) -> None:
    """What a registration makes of a weight is a member, which a step leaves as it is up to rounding."""
    W = torch.randn(shape, dtype=dtype)
    by_map = sp.constrain(Holder(W.clone()), "weight", case.make(shape), gates=case.gates(shape))
    expected = by_map.weight.detach()
    module, _ = held(case, expected)
    # Coordinates of a diagonal metric are searched, to 1e-6.
    searched = 1e-5 if "diagonal" in case.name else 0.0
    limit = (tolerance(dtype, shape[-1]) + searched) * max(1.0, float(expected.abs().max()))
    assert float((module.weight.detach() - expected).abs().max()) <= limit


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.name in REFUSED])
def test_the_others_are_refused_and_their_map_holds(case) -> None:
    W = case.member(case.shapes[0], case.dtypes[0])
    module = Holder(W.clone())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with refused("with an optimizer"):
        sp.constrain(module, "weight", case.make(tuple(W.shape)), optimizer=optimizer, init=case.init)
    assert torch.equal(module.weight, W)
    assert vars(module).keys() == vars(Holder(W)).keys()
    sp.constrain(
        module, "weight", case.make(tuple(W.shape)), gates=case.gates(tuple(W.shape)), init=case.init
    )
    assert outside(case, module.weight) <= 1


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.name not in REFUSED])
@pytest.mark.turns(2)
def test_free_parameters_are_those_of_the_map(case) -> None:
    shape, dtype = case.shapes[0], case.dtypes[0]
    W = torch.randn(shape, dtype=dtype)
    state = torch.get_rng_state()
    module, _ = held(case, W)
    by_map = sp.constrain(Holder(W.clone()), "weight", case.make(shape), gates=case.gates(shape))
    assert sp.num_free_parameters(module) == sp.num_free_parameters(by_map)
    assert torch.equal(torch.get_rng_state(), state) or case.name == "SpectralNorm"


@pytest.mark.parametrize("name", sorted(ORTHONORMAL))
def test_half_precision_is_outside_by_its_own_rounding(name) -> None:
    (case,) = [case for case in CASES if case.name == name]
    module, optimizer = held(case, torch.randn(8, 8, dtype=torch.bfloat16))
    for _ in range(3):
        train(module, optimizer)
        X = module.weight.double()
        defect = torch.linalg.matrix_norm(X.mT @ X - torch.eye(8, dtype=X.dtype))
        assert defect <= 4 * math.sqrt(8) * torch.finfo(torch.bfloat16).eps
        assert sp.violation(module) == {"weight": 0.0}
