"""Faults that test_memory.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "reads: a second read evaluates the constraint again",
        "spectral_param/_parametrizations/memory.py",
        "if last is None or last.marks != marks or not _is_current(",
        "if last is None or last.marks == marks or not _is_current(",
        "evaluated_once",
    ),
    Fault(
        "attributes: a weight stays the same after an attribute has been set",
        "spectral_param/_parametrizations/memory.py",
        'edits.append((content["_edits"], content',
        "edits.append((0, content",
        "seen",
    ),
    Fault(
        "buffers: a buffer that was written to counts as the same",
        "spectral_param/_parametrizations/memory.py",
        "    if (state.buffers or before.buffers) and not _are_same(state.buffers, before.buffers, asked):\n",
        "    if False:\n",
        "seen",
    ),
    Fault(
        "late-edit: the gradient of a read is that of what the buffers are later",
        "spectral_param/_parametrizations/memory.py",
        "name: None if buffer is None else buffer.detach().clone()",
        "name: buffer",
        "after_an_edit",
    ),
    Fault(
        "gone: a later read hands its gradient to a parameter that has been replaced",
        "spectral_param/_parametrizations/memory.py",
        "or not all(map(_is, shared.originals, originals))",
        "",
        "was_there",
    ),
    Fault(
        "released-later: a later read shares what knows of no gradient for an original that was frozen",
        "spectral_param/_parametrizations/memory.py",
        "            or shared.needed != needed\n",
        "",
        "are_trained",
    ),
    Fault(
        "held: the memory keeps alive what later reads share",
        "spectral_param/_parametrizations/memory.py",
        "self.shared = _nothing if shared is None else weakref.ref(shared)",
        "self.shared = lambda shared=shared: shared",
        "no_graph",
    ),
    Fault(
        "each: every read is pulled back by itself",
        "spectral_param/_parametrizations/memory.py",
        "            shared is None\n            or",
        "            True\n            or",
        "pulled_back_once",
    ),
    Fault(
        "self-held: a map that is remembered holds the graph of its weight",
        "spectral_param/_map.py",
        "return the.value.detach()",
        "return the.value",
        "know_their_model",
    ),
    Fault(
        "once: what reads share has no second derivative after the first backward pass",
        "spectral_param/_map.py",
        "inputs = ctx.saved_tensors if ctx.kept is None else ctx.kept",
        "inputs = ctx.saved_tensors or ctx.kept",
        "one_by_one",
    ),
    Fault(
        "late-hessian: the second derivative of a read is that of the attributes that hold later",
        "spectral_param/_parametrizations/base.py",
        "return recorded(frozen(self).reference, *values)",
        "return recorded(self.reference, *values)",
        "after_an_edit",
    ),
    Fault(
        "frozen: a gradient of an original is taken from a read for which it was frozen",
        "spectral_param/_parametrizations/memory.py",
        "            or shared.needed != needed\n",
        "",
        "frozen",
    ),
    Fault(
        "hooks: a first read saves more than a second one",
        "spectral_param/_parametrizations/memory.py",
        "hooked = _top_hooks(False) is not None",
        "hooked = False",
        "hooks",
    ),
    Fault(
        "compared: of a large weight only a part is compared",
        "spectral_param/_parametrizations/memory.py",
        "return np.array_equal(x, y)",
        "return np.array_equal(x[1:], y[1:])",
    ),
)
