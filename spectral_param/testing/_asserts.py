"""Assertions of the checks, with messages that name what was compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from spectral_param.testing._case import Case, Shape, tolerance


def largest_entry(X: Tensor) -> float:
    return X.abs().max().item() if X.numel() else 0.0


def assert_close(actual: Tensor, expected: Tensor, atol: float, what: str) -> None:
    error = largest_entry(actual - expected)
    assert error <= atol, f"{what}: expected agreement to {atol:.1e}, got {error:.1e}"


def assert_all_close(actual: Iterable[Tensor], expected: Iterable[Tensor], atol: float, what: str) -> None:
    for each, other in zip(actual, expected, strict=True):
        assert_close(each, other, atol, what)


def varied(W: Tensor, G: Tensor) -> Tensor:
    """Return a number that depends on W even among matrices of equal norms, such as orthogonal matrices."""
    return (W * G.to(W.device)).abs().square().sum()


def assert_not_zero(gradients: Sequence[Tensor], shape: Shape) -> None:
    """Assert that a gradient is not zero, except for n = 1, where members may be isolated points."""
    largest = max(map(largest_entry, gradients))
    assert min(shape[-2:]) == 1 or largest > 1e-3, f"expected a gradient that is not zero, got {largest:.1e}"


def assert_inside(case: Case, W: Tensor, what: str, size: float = 1.0) -> None:
    limit = tolerance(W.dtype, max(W.shape[-2:])) * size
    violation = case.violation(W.detach()).max().item()
    assert violation <= limit, f"{what}: expected a violation <= {limit:.1e}, got {violation:.1e}"
