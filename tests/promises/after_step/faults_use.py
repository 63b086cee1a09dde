"""Faults that test_use.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "hook-twice: an optimizer gets another hook for each of its weights",
        "spectral_param/_held/hooks.py",
        "    hook = _HOOKS.get(optimizer)\n",
        "    hook = None\n",
        "one_hook",
    ),
    Fault(
        "held-swapped: a weight that is held cannot be converted by swapping",
        "spectral_param/_held/hooks.py",
        "        self._weight, self._full = weight, full\n",
        "        self._weight, self._full = weight, full\n        self._known = weakref.ref(weight)\n",
        "swapped",
    ),
    Fault(
        "replaced: another parameter in its place is not noticed",
        "spectral_param/_held/hooks.py",
        "owner._parameters.get(self.name) is not known:",
        "False:",
        "replaced",
    ),
    Fault(
        "let-go: a weight that was removed is still put back",
        "spectral_param/_held/record.py",
        "[entry for entry in hook.entries if entry.constraint is not constraint]",
        "hook.entries",
        "remove",
    ),
    Fault(
        "asked: asking how far a weight is outside moves what is followed",
        "spectral_param/_parametrizations/in_set.py",
        "                    vars(part)[name] = copy.copy(value)\n",
        "                    pass\n",
        "reading",
    ),
    Fault(
        "one-name: a tied weight is held under one of its names",
        "spectral_param/_register/held.py",
        "        record.hold(names_of(module, weight), link, chosen, asked, kind)\n",
        "        record.hold(names_of(module, weight)[:1], link, chosen, asked, kind)\n",
        "tied",
    ),
    Fault(
        "curvature: LBFGS keeps its memory after a projection",
        "spectral_param/_held/hooks.py",
        '        state["n_iter"] = 0\n',
        "",
        "lbfgs",
    ),
    Fault(
        "restart-held: reset_parameters leaves a held weight outside of its set",
        "spectral_param/_held/record.py",
        "            write(self._owner._parameters[name], constraint.sample())\n",
        "            pass\n",
        "reset",
    ),
)
