"""A conformance suite for parametrizations, which checks the contracts that every constraint has to keep.

>>> class Skew(spectral_param.Parametrization):
...     def reference(self, T):
...         return T.triu(1) - T.triu(1).mT
...
...     def outside(self, W, eps):
...         return (W + W.mT).abs().amax(dim=(-2, -1)), 100 * eps
...
...     def near(self, W):
...         return (W - W.mT) / 2
...
...     def invert(self, W):
...         return W.triu(1)
...
...     def start(self, like):
...         return torch.zeros_like(like)
...
...     def free_parameters(self, T):
...         return torch.ones_like(T).triu(1).count_nonzero().item()
>>> spectral_param.testing.check_constraint(lambda shape: Skew())

A check that fails raises an ``AssertionError`` that names the check, the shape and the dtype, and says what
was expected. If the constraint itself raised an error, this error is the cause of the ``AssertionError``.
Instead of a function, you can pass a :class:`Case`. A case can also describe the members of the set, the
shapes and dtypes to test, and the checks that are expected to fail. pytest can run each check as a separate
test::

    @spectral_param.testing.parametrize_with_checks([case])
    def test_contract(check):
        check()

All checks take the same arguments: a case, the shape of the weight and its dtype. :func:`conformance` returns
a :class:`Trial` for each check of :data:`CHECKS` that applies, and for each pair of a shape and a dtype. Only
:func:`parametrize_with_checks` imports pytest.
"""

from spectral_param.testing._case import SHAPES, Case, Holder, Shape, assignable, holder, originals, tolerance
from spectral_param.testing._derivatives import (
    check_cached,
    check_gradient_of_the_read,
    check_gradients,
    check_repeated_reads,
    check_torch_func,
    check_write_during_a_read,
)
from spectral_param.testing._input import check_bad_input, check_nan, check_nan_in_a_batch, check_random_state
from spectral_param.testing._sets import (
    check_any_size,
    check_assignment_copies,
    check_constraint_holds,
    check_large_originals,
    check_paper_start,
    check_projection,
    check_rejects_outside,
    check_right_inverse,
    check_set,
    check_tangent,
)
from spectral_param.testing._suite import (
    CHECKS,
    Check,
    Trial,
    check_constraint,
    conformance,
    parametrize_with_checks,
)
from spectral_param.testing._use import (
    check_autocast,
    check_averaging,
    check_bfloat16,
    check_compile,
    check_deepcopy,
    check_deepcopy_of_rnn,
    check_export,
    check_half_and_back,
    check_remove,
    check_state_dict,
    check_to,
)

__all__ = [
    "CHECKS",
    "SHAPES",
    "Case",
    "Check",
    "Holder",
    "Shape",
    "Trial",
    "assignable",
    "check_any_size",
    "check_assignment_copies",
    "check_autocast",
    "check_averaging",
    "check_bad_input",
    "check_bfloat16",
    "check_cached",
    "check_compile",
    "check_constraint",
    "check_constraint_holds",
    "check_deepcopy",
    "check_deepcopy_of_rnn",
    "check_export",
    "check_gradient_of_the_read",
    "check_gradients",
    "check_half_and_back",
    "check_large_originals",
    "check_nan",
    "check_nan_in_a_batch",
    "check_paper_start",
    "check_projection",
    "check_random_state",
    "check_rejects_outside",
    "check_remove",
    "check_repeated_reads",
    "check_right_inverse",
    "check_set",
    "check_state_dict",
    "check_tangent",
    "check_to",
    "check_torch_func",
    "check_write_during_a_read",
    "conformance",
    "holder",
    "originals",
    "parametrize_with_checks",
    "tolerance",
]
