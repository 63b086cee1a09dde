"""Faults that test_steps.py finds."""

from tests.faults import Fault

_HOOKS, _STEPS = "spectral_param/_held/hooks.py", "spectral_param/_held/steps.py"

FAULTS = (
    Fault(
        "not-along: the optimizer gets the gradient with its part normal to the set",
        _HOOKS,
        "                w.placed.write(gradients[w.entry], w.placed.join(found[i]))\n",
        "",
        "linear_cost and sphere and Adam",
    ),
    Fault(
        "other-rate: a relative step has the size of another group's rate",
        _HOOKS,
        'groups[group[i].weight].get("lr")',
        'optimizer.param_groups[0].get("lr")',
        "angle_of_the_rate",
    ),
    Fault(
        "turned: rounding errors of a step that changed nothing become a direction",
        _STEPS,
        "    return torch.where(ratio > _ROUNDINGS * torch.finfo(W.dtype).eps, step, 0), ratio\n",
        "    return step, ratio\n",
        "no_bit",
    ),
    Fault(
        "one-row: a slice turns by more than the angle",
        _STEPS,
        "torch.where(part > share, share / part, 1) * U",
        "U",
        "no_slice",
    ),
    Fault(
        "rescaled: a weight is scaled to its norm in place of the nearest one",
        "spectral_param/_parametrizations/spectral_norm.py",
        "        found = super().near(nearest(W, c.to(W.device, W.real.dtype)))\n",
        "        found = super().near(W)\n",
        "nearest_matrix",
    ),
    Fault(
        "raised: gradients keep what raises singular values at their bound",
        "spectral_param/_sets/spectral_ball.py",
        "    Q = torch.where((values > 0)[..., None, :], Q, 0)\n",
        "    Q = torch.where((values < 0)[..., None, :], Q, 0)\n",
        "nearest_matrix",
    ),
    Fault(
        "coupled: decay that is divided entry by entry is taken",
        _STEPS,
        "    if isinstance(optimizer, _dividing()) and decay:\n",
        "    if False:\n",
        "divided",
    ),
    Fault(
        "closure: gradients that a closure computes are left as they are",
        _HOOKS,
        "            closure = _followed_by(args[1], along)\n",
        "            closure = args[1]\n",
        "closures",
    ),
    Fault(
        "not-member: the gradient at a weight outside of its set is projected, too",
        _HOOKS,
        "        is_member = is_inside(distance, resolution)\n",
        "        is_member = distance >= 0\n",
        "moved_out",
    ),
    Fault(
        "kept: the copies of a step stay",
        _HOOKS,
        "        along()\n        return carried, kwargs\n",
        "        along()\n        self.last = carried\n        return carried, kwargs\n",
        "outlives",
    ),
    Fault(
        "step-forgotten: a copy of a model forgets the step that was asked for",
        "spectral_param/_held/record.py",
        "    return held.step if held is not None and",
        "    return held.step if held is None and",
        "copy_keeps",
    ),
    Fault(
        "old-norm: a checkpoint that is loaded is rescaled to the norm before",
        "spectral_param/_parametrizations/placed.py",
        "            self.constraint._renew()\n",
        "",
        "present_takes",
    ),
    Fault(
        "inward: maximizing counts as minimizing at a boundary",
        _HOOKS,
        '-1.0 if of[w.weight].get("maximize") else 1.0',
        "1.0",
        "maximizing",
    ),
)
