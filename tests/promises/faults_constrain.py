"""Faults that test_constrain.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "functional_call: the weight's own name detaches it in silence",
        "spectral_param/_parametrizations/weight.py",
        "        check_not_swapped(type(self).__name__)\n",
        "",
        "functional_call",
    ),
    Fault(
        "contiguous: a weight is a view of its transpose",
        "spectral_param/_parametrizations/memory.py",
        "unwritten = self.weight.clone(memory_format=torch.contiguous_format)",
        "unwritten = self.weight.clone()",
        "weights_are_contiguous",
    ),
    Fault(
        "gru: a GRU has as many gates as an LSTM",
        "spectral_param/_register/holders.py",
        'nn.GRU: (("weight_hh", "weight_ih"), 3),',
        'nn.GRU: (("weight_hh", "weight_ih"), 4),',
        "gates",
    ),
    Fault(
        "half-way: a pattern that fails leaves tensors of a module with another constraint constrained",
        "spectral_param/_register/snapshot.py",
        "            remove_parametrizations(self._owner, self._name)\n",
        "            pass\n",
        "failure",
    ),
    Fault(
        "chain: a list of constraints acts from the last one to the first",
        "spectral_param/_register/constrain.py",
        "    first, *later = links\n    present",
        "    first, *later = links[::-1]\n    present",
        "chain",
    ),
    Fault(
        "pattern: all matches of a pattern share one constraint",
        "spectral_param/_register/holders.py",
        "    link = copy.deepcopy(link)\n    if isinstance(link, Parametrization):\n        link.gates",
        "    if isinstance(link, Parametrization):\n        link.gates",
        "pattern",
    ),
    Fault(
        "restored: a constraint that fails leaves the weight that it has changed",
        "spectral_param/_register/snapshot.py",
        "        self._tensor.data.copy_(self._entries)\n",
        "",
        "fail",
    ),
    Fault(
        "alias: a tensor that is registered twice is constrained under one name",
        "spectral_param/_register/targets.py",
        "    if aliases:\n",
        "    if False:\n",
        "twice",
    ),
    Fault(
        "pruned: a weight that a mask multiplies afterwards is constrained",
        "spectral_param/_register/holders.py",
        "f\"{name.removesuffix('_orig')}_mask\" in owner._buffers",
        'f"{name}_mask" in owner._buffers',
        "pruned",
    ),
    Fault(
        "rate: constrained weights have the learning rate of the others by default",
        "spectral_param/_model.py",
        "lr / 10 if constrained_lr is None else constrained_lr",
        "lr if constrained_lr is None else constrained_lr",
        "param_groups",
    ),
    Fault(
        "decay: the originals of constrained weights decay, and the others do not",
        "spectral_param/_model.py",
        "= weight_decay, 0.0",
        "= 0.0, weight_decay",
        "param_groups",
    ),
    Fault(
        "counted-twice: the originals of a constraint count beside its free parameters",
        "spectral_param/_model.py",
        "            counted.update(originals)\n",
        "",
        "free_parameters",
    ),
    Fault(
        "finite: a weight with one infinite entry is accepted",
        "spectral_param/functional/_checks.py",
        "if not bool(X.isfinite().all()):",
        "if bool(X.isnan().all()):",
        "not_finite_is_refused",
    ),
)
