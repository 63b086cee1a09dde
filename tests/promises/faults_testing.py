"""Faults that test_testing.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "unchecked: the second derivatives of a constraint of one's own are not compared",
        "spectral_param/testing/_derivatives.py",
        '(gradgradcheck, "second derivatives", parametrization, tensors, fast_mode=True)',
        '(gradcheck, "second derivatives", parametrization, tensors, fast_mode=True)',
        "gradients",
    ),
    Fault(
        "violation: of the matrices of a batch the best one is looked at",
        "spectral_param/testing/_asserts.py",
        "    violation = case.violation(W.detach()).max().item()\n    assert violation <= limit",
        "    violation = case.violation(W.detach()).min().item()\n    assert violation <= limit",
        "check_of_ones_own",
    ),
    Fault(
        "refused: a message without what was given passes",
        "spectral_param/testing/_sets.py",
        '    assert "got" in message, f"expected a message with \'got\' and what was given: {message}"\n',
        "",
        "message",
    ),
    Fault(
        "constant: a gradient of zero passes for the right one",
        "spectral_param/testing/_asserts.py",
        "assert min(shape[-2:]) == 1 or largest > 1e-3",
        "assert min(shape[-2:]) == 1 or largest >= 0",
        "zeros",
    ),
    Fault(
        "along a set: a tangent may leave the set as fast as any change",
        "spectral_param/testing/_sets.py",
        "assert along[1] <= 0.02 * along[0] + limit",
        "assert along[1] <= along[0] + limit",
        "wrong_tangent",
    ),
)
