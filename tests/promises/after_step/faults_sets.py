"""Faults that test_sets.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "hook-lost: no hook is registered",
        "spectral_param/_held/hooks.py",
        "        optimizer.register_step_post_hook(hook.after)\n",
        "",
        "orthonormal",
    ),
    Fault(
        "own-set: a set that a user wrote is left by the steps",
        "spectral_param/_parametrizations/in_set.py",
        "        return self.members(W, torch.finfo(W.dtype).eps, is_first=True)\n",
        "        return W\n",
        "ones_own",
    ),
    Fault(
        "tiny-sign: a small entry of the wrong sign counts as rounding",
        "spectral_param/_parametrizations/sign_pattern.py",
        "    return (pattern * X < 0) & (pattern != _FREE)\n",
        "    return (pattern * X < -1e-12) & (pattern != _FREE)\n",
        "however_small",
    ),
    Fault(
        "moved: a member is put back once more, by a hook that runs twice",
        "spectral_param/_parametrizations/in_set.py",
        "    return torch.where((move > limit * size)[..., None, None], near, X)\n",
        "    return near\n",
        "every_set and singular",
    ),
    Fault(
        "own-bound: a batch of matrices has one bound in diagonal coordinates",
        "spectral_param/_parametrizations/lyapunov_form.py",
        "        bounds = self._bound_for(exact).expand(W.shape[:-2]).reshape(-1).tolist()\n",
        "        bounds = self._bound_for(exact).reshape(1).tolist()\n",
        "its_own_bound",
    ),
)
