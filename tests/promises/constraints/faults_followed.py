"""Faults that test_followed.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "tracked: the left vector of a tracked complex eigenvalue is not conjugated",
        "spectral_param/_eigen/tracking.py",
        "(u[0], v[0].conj_physical())",
        "(u[0], v[0])",
        "tracked_gradient",
    ),
    Fault(
        "norm-block: what lies outside of the block is not bounded",
        "spectral_param/_eigen/norm.py",
        "upper = hermitian.block_bound(leading, defect, b)",
        "upper = top",
        "norm_that_is_followed",
    ),
    Fault(
        "norm-move: a bound is taken over from the last step, but not the move",
        "spectral_param/_eigen/norm.py",
        "old and old + move for old",
        "old for old",
        "norm_that_is_followed",
    ),
    Fault(
        "norm-power: the residual of a power step is left out of its bound",
        "spectral_param/_eigen/hermitian.py",
        "return theta + defect / (theta - second) if",
        "return theta if",
        "norm_that_is_followed",
    ),
    Fault(
        "audit: a followed eigenvalue is never doubted",
        "spectral_param/_eigen/tracking.py",
        "log_excess = max(log_excess, _audit(power.matrix, right, left, projected, generator))",
        "pass",
        "radius_that_is_followed",
    ),
    Fault(
        "resolvent: of the powers outside of the blocks, the audit counts none but the first",
        "spectral_param/_eigen/proof.py",
        "return sum(first) / (1 - last) / r if last < 1 else math.inf",
        "return first[0] if last < math.inf else math.inf",
        "radius_that_is_followed",
    ),
)
