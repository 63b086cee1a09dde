"""A constraint under test, and a module with a constrained weight."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param._register.constrain import constrain
from spectral_param.errors import InManifoldError

#: The shape of a weight.
Shape = tuple[int, ...]


#: The default shapes: an even and an odd size, a batch, and the four gates of an LSTM.
SHAPES: tuple[Shape, ...] = ((4, 4), (5, 5), (2, 4, 4), (16, 4))


@dataclass(frozen=True)
class Case:
    """One parametrization under test.

    Attributes:
        name: The name in reports.
        make: Returns a new parametrization for a weight of the given shape.
        member: Returns a random weight of the given shape and dtype that satisfies the constraint. The weight
            can be a stack of gates, of shape ``(4·n, n)``. By default, a member is a random weight after
            registration.
        violation: Returns how far a weight is from satisfying the constraint, relative to the size of the
            weight; 0 for members. The result is one number, or one number for each matrix or row. The weight
            can be a stack of gates. By default, the result is 0 for a weight that can be assigned, and
            infinity for a weight that is refused.
        outside: Returns a weight of the given shape and dtype that does not satisfy the constraint. None, the
            default, if all weights satisfy the constraint, or if the parametrization accepts all weights.
        recovers: Whether ``right_inverse`` finds originals for every member. If ``recovers`` is False,
            ``init="paper"`` starts the weight, only the present weight can be assigned, and ``violation`` has
            to be given.
        dtypes: The supported dtypes.
        shapes: The shapes to test: square matrices and stacks of gates.
        rectangles: More shapes to test: matrices that are not square, single or in a batch. If ``rectangles``
            is empty, a rectangular weight has to raise an error. So name some rectangles for a constraint
            with ``shapes = "tall"`` or ``"any"``.
        holds_far: Whether the constraint holds up to rounding for all finite originals.
        variant: Whether this case is another mode of a parametrization that already has a case. For a
            variant, only the checks that depend on the mode are run.
        expected_failed_checks: Checks that are expected to fail: their names without ``check_``, each with
            the reason. If such a check passes, this counts as an error, and its name must be removed.

    Raises:
        ValueError: If ``expected_failed_checks`` contains a name that no check has.
    """

    name: str
    make: Callable[[Shape], nn.Module]
    member: Callable[[Shape, torch.dtype], Tensor] = None  # type: ignore[assignment]  # Set below.
    violation: Callable[[Tensor], Tensor] = None  # type: ignore[assignment]
    outside: Callable[[Shape, torch.dtype], Tensor] | None = None
    recovers: bool = True
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.complex64, torch.complex128)
    shapes: tuple[Shape, ...] = SHAPES
    rectangles: tuple[Shape, ...] = ()
    holds_far: bool = True
    variant: bool = False
    expected_failed_checks: Mapping[str, str] = field(default_factory=dict)

    # The names of all checks. The module ``_suite`` sets this attribute, because the checks import this
    # class.
    checks: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        # The default functions are bound to this case here, so that dataclasses.replace(case, make=...) binds
        # them to the new case.
        for name, default in (("member", _registered), ("violation", _refused)):
            given = getattr(self, name)
            if given is None or getattr(given, "func", None) is default:
                object.__setattr__(self, name, functools.partial(default, self))
        unknown = sorted(self.expected_failed_checks.keys() - self.checks)
        if unknown:
            raise ValueError(
                f"expected_failed_checks: expected names of checks, got {', '.join(unknown)}. "
                f"The checks are {', '.join(sorted(self.checks))}"
            )

    @property
    def init(self) -> Literal["paper"] | None:
        """Argument ``init`` of :func:`spectral_param.constrain`: None if ``recovers``, else ``"paper"``."""
        return None if self.recovers else "paper"

    def gates(self, shape: Shape) -> int:
        """Return the number of blocks in a weight of this shape."""
        return 1 if shape in self.rectangles else shape[-2] // shape[-1]


def _registered(case: Case, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Return a member of the set: a random weight after registration."""
    return holder(case, draw(shape, dtype)).weight.detach().clone()


def _refused(case: Case, W: Tensor) -> Tensor:
    """Return 0 for a weight that can be assigned, infinity for a weight that is refused."""
    module = holder(case, torch.randn_like(W))
    try:
        module.weight = W.detach().clone()  # type: ignore[assignment]
    except InManifoldError:
        return torch.tensor(torch.inf, dtype=torch.float64, device="cpu")
    return torch.tensor(0.0, dtype=torch.float64, device="cpu")


class Holder(nn.Module):
    """A module whose weight multiplies the input from the left."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``weight @ x`` for x of shape ``(..., n, k)``."""
        return self.weight @ x


def tolerance(dtype: torch.dtype, n: int) -> float:
    """Return 100·n·eps, a bound on rounding errors for well-conditioned matrices of size n."""
    return 100 * n * float(torch.finfo(dtype).eps)


def holder(case: Case, weight: Tensor) -> Holder:
    """Return a module with a constrained weight, which starts from ``weight`` if ``case.recovers``."""
    module = Holder(weight.clone())
    shape = tuple(weight.shape)
    return constrain(module, "weight", case.make(shape), gates=case.gates(shape), init=case.init)


def assignable(case: Case, module: Holder) -> Tensor:
    """Return a new tensor that can be assigned to ``module.weight``."""
    W = module.weight.detach().clone()
    return case.member(tuple(W.shape), W.dtype) if case.recovers else W


def originals(module: nn.Module) -> list[nn.Parameter]:
    """Return the unconstrained tensors from which ``module.weight`` is computed."""
    return list(list_of(module).parameters(recurse=False))


def list_of(module: nn.Module) -> parametrize.ParametrizationList:
    found = module.parametrizations["weight"]  # type: ignore[index]
    assert isinstance(found, parametrize.ParametrizationList)
    return found


def train_steps(module: nn.Module, shape: Shape, dtype: torch.dtype, steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    x = draw((*shape[:-2], shape[-1], 3), dtype, module, generator)
    y = draw((*shape[:-2], shape[-2], 3), dtype, module, generator)
    for _ in range(steps):
        optimizer.zero_grad()
        (module(x) - y).abs().square().mean().backward()
        optimizer.step()


def draw(
    shape: Shape, dtype: torch.dtype, like: nn.Module | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Return standard normal numbers, drawn on the host and moved to the device of ``like``."""
    drawn = torch.randn(shape, dtype=dtype, device="cpu", generator=generator)
    return drawn if like is None else drawn.to(next(like.parameters()).device)
