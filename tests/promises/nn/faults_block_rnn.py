"""Faults that test_block_rnn.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "batched-recurrence: many gradients at a time are taken in place",
        "spectral_param/_recurrence/node.py",
        "if torch.is_grad_enabled() or any(g is not None and is_wrapped(g) for g in grads):",
        "if torch.is_grad_enabled():",
        "jacobian",
    ),
    Fault(
        "dual-recurrence: the fused recurrence, which has no tangent, runs in forward mode",
        "spectral_param/_recurrence/dispatch.py",
        "    untransformed = compiled or is_plain(",
        "    untransformed = True or is_plain(",
        "forward_mode",
    ),
    Fault(
        "unsorted: the last states of a packed sequence are not sorted back",
        "spectral_param/nn/_sequence_layer.py",
        "h_n = h_n.index_select(1, x.unsorted_indices)",
        "pass",
        "packed",
    ),
    Fault(
        "backwards: the states of the second direction stay in reverse order",
        "spectral_param/nn/_sequence_layer.py",
        "outputs.append(output[reverse] if backwards else output)",
        "outputs.append(output)",
        "torch_nn_rnn",
    ),
    Fault(
        "mirror: a short sequence is reversed as the longest one is",
        "spectral_param/_recurrence/sequence.py",
        "mirrored = lengths[sequence] - 1 - step",
        "mirrored = (lengths[0] - 1 - step) % lengths[sequence]",
        "packed",
    ),
    Fault(
        "carried: the last layer gets the initial state of the first one",
        "spectral_param/nn/_sequence_layer.py",
        "list(hx.reshape(count, sizes[0], *self.state_shape))",
        "list(hx.reshape(count, sizes[0], *self.state_shape))[::-1]",
        "torch_nn_rnn",
    ),
    Fault(
        "dropout: the output of the last layer is dropped, too",
        "spectral_param/nn/_sequence_layer.py",
        "            if layer < self.num_layers - 1:\n                rows = _dropout",
        "            if layer < self.num_layers:\n                rows = _dropout",
        "dropout",
    ),
    Fault(
        "imaginary: the imaginary part of an input is dropped by a real network",
        "spectral_param/nn/_sequence_layer.py",
        "    if x.is_complex() and not dtype.is_complex:\n",
        "    if False:\n",
        "complex",
    ),
    Fault(
        "shapes: initial states of another batch are accepted",
        "spectral_param/nn/_sequence_layer.py",
        "        if hx.shape != expected:\n",
        "        if hx.shape[-1] != expected[-1]:\n",
        "initial_state",
    ),
)
