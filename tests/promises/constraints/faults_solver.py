"""Faults that test_solver.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "solver-state: a solver gets the state of matrices of another shape",
        "spectral_param/_eigen/solver.py",
        "if kind == self._kind else [None] * len(matrices)",
        "if len(self._states) == len(matrices) else [None] * len(matrices)",
        "state",
    ),
    Fault(
        "solver-size: a solver is asked below its least size",
        "spectral_param/_eigen/solver.py",
        "self.least_size = self.solver.radius_from",
        "self.least_size = 0",
        "size_limits",
    ),
    Fault(
        "extreme-triple: a solver's word is taken for eigenvalues whose squares leave the dtype",
        "spectral_param/_eigen/solver.py",
        "known and _has_squares(triple.eigenvalue)",
        "known",
        "any_scale",
    ),
)
