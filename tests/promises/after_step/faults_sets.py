"""Faults that test_sets.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "hook-lost: no hook is registered",
        "spectral_param/_after_step.py",
        "        optimizer.register_step_post_hook(hook)\n",
        "",
        "orthonormal",
    ),
    Fault(
        "moved: a member is put back once more, by a hook that runs twice",
        "spectral_param/_held.py",
        "    return torch.where((moved > _ROUNDINGS * eps * size)[..., None, None], Y, X)\n",
        "    return Y\n",
        "every_set and singular",
    ),
)
