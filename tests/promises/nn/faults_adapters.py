"""Faults that test_adapters.py finds."""

from tests.faults import Fault

ROTATION = "spectral_param/_parametrizations/rotation.py"
ADAPTERS = "spectral_param/nn/_adapters.py"

FAULTS = (
    Fault(
        "axes of outputs: the outputs of a transposed convolution are not put back",
        ROTATION,
        "rotated = self._rotated(outputs_first).transpose(1, 2)",
        "rotated = self._rotated(outputs_first)",
        "exactly and transposed",
    ),
    Fault(
        "groups of adapters: the groups of a transposed convolution are forgotten",
        ADAPTERS,
        "groups = transposed = owner.groups",
        "groups = transposed = 1",
        "transposed",
    ),
    Fault(
        "places: the entries below the diagonal are put at the wrong place",
        ROTATION,
        "row * (row - 1) // 2 + column",
        "row * (row + 1) // 2 + column",
        "exactly and linear",
    ),
    Fault(
        "direction of rotations: R is transposed",
        ROTATION,
        "torch.sign(i[:, None] - i)",
        "torch.sign(i - i[:, None])",
        "exactly and linear",
    ),
    Fault(
        "half of adapters: the product is computed in half precision",
        ROTATION,
        "if self.is_merging and W.dtype == torch.float32 else at_least_float32(W)",
        "if self.is_merging and W.dtype == torch.float32 else W.clone()",
        "bfloat16",
    ),
    Fault(
        "merging: a product in float32 is rounded more than once",
        ROTATION,
        "to_double(W) if self.is_merging and",
        "to_double(W) if False and",
        "exactly",
    ),
    Fault(
        "merged while off: adapters that are switched off are lost",
        ROTATION,
        "if not (self.enabled or self.is_merging):",
        "if not self.enabled:",
        "switched_off",
    ),
    Fault(
        "autocast of rotations: R is computed in bfloat16",
        ROTATION,
        "    @full_precision\n    def forward",
        "    def forward",
        "autocast",
    ),
    Fault(
        "copy of adapters: a copy that is merged merges the original",
        ROTATION,
        "        give_classes_of_their_own(memo)\n",
        "",
        "copy",
    ),
    Fault(
        "freeze: rotations of an earlier call are frozen",
        ADAPTERS,
        "if id(parameter) not in rotations:",
        "if True:",
        "told",
    ),
    Fault(
        "frozen base: other parameters train",
        ADAPTERS,
        "            parameter.requires_grad_(False)",
        "            pass",
        "only_rotations_train",
    ),
    Fault(
        "untied: a second name of a weight is not looked for",
        ADAPTERS,
        "    if others:\n",
        "    if False:\n",
        "refused",
    ),
    Fault(
        "quantized: packed layers are passed over",
        ADAPTERS,
        "if is_meant and _is_quantized(owner):",
        "if False:",
        "refused",
    ),
    Fault(
        "loaded rotations: shapes are not compared, and a state may be loaded in part",
        ADAPTERS,
        "if state[name].shape != link.skew.shape:",
        "if False:",
        "nothing_is_loaded",
    ),
    Fault(
        "off: adapters stay off",
        ADAPTERS,
        "                link.enabled = enabled",
        "                pass",
        "another_process or trained or train",
    ),
    Fault(
        "of another library: what constrain has registered of another library stays",
        "spectral_param/_register/constrain.py",
        "or _REGISTERED in vars(link)",
        "or False",
        "another_library",
    ),
    Fault(
        "unmerged: adapters stay",
        "spectral_param/_register/constrain.py",
        "isinstance(link, (Parametrization, Rotation)) or",
        "isinstance(link, Parametrization) or",
        "remove_merges",
    ),
)
