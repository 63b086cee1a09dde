"""constrain, optimizer groups and parameter counts."""

import copy
import math
import warnings

import geotorch
import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch.nn.utils import parametrize, prune

import spectral_param as sp
from spectral_param.testing import holder
from tests.messages import refused
from tests.promises.cases import CASES, abscissas, from_any, orthogonality_defect, radii


def test_constrain_returns_the_module() -> None:
    for make in (sp.SpectralRadiusNorm, sp.ScaledCayley):
        layer = torch.nn.Linear(4, 4)
        assert sp.constrain(layer, "weight", make()) is layer
        assert parametrize.is_parametrized(layer, "weight")


def test_init_from_a_tensor_and_from_a_function() -> None:
    W = torch.linalg.qr(torch.randn(4, 4)).Q
    torch.testing.assert_close(
        sp.constrain(torch.nn.Linear(4, 4), "weight", sp.ScaledCayley(), init=W).weight, W
    )
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", sp.ScaledCayley(), init=torch.nn.init.eye_)
    torch.testing.assert_close(layer.weight, torch.eye(4))


def test_init_outside_the_set_is_projected() -> None:
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", sp.SpectralRadiusNorm(), init=5 * torch.eye(4))
    torch.testing.assert_close(layer.weight, torch.eye(4))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"tensor_name": "weights"}, "'weights'.*weight, bias"),
        ({"init": "papers"}, "init: expected"),
        ({"init": np.eye(4)}, "init: expected.*got array"),
        ({"init": torch.eye(4) * 1j}, "init: expected.*got torch.complex64"),
        ({"init": torch.eye(3)}, r"\(4, 4\), got \(3, 3\)"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, match) -> None:
    with refused(match):
        sp.constrain(
            torch.nn.Linear(4, 4),
            **{"tensor_name": "weight", "constraint": sp.ScaledCayley(), **arguments},
        )


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (torch.eye(4), r"Tensor of shape \(4, 4\)"),
        (torch.nn.Parameter(torch.eye(4)), r"Parameter of shape \(4, 4\)"),
        (np.eye(4), r"ndarray of shape \(4, 4\)"),
        (None, "None"),
        ([torch.nn.Linear(4, 4)], r"list.*torch\.nn\.ModuleList"),
        (torch.nn.Linear, "class Linear"),
    ],
)
def test_what_is_no_module_is_named(module, match) -> None:
    functions = (
        lambda: sp.constrain(module, "weight", sp.ScaledCayley()),
        lambda: sp.analysis.displacement(module, "weight", sp.ScaledCayley()),
        lambda: sp.analysis.spectral_summary(module),
        lambda: sp.remove(module),
        lambda: sp.param_groups(module, lr=1e-3),
        lambda: sp.num_free_parameters(module),
        lambda: sp.penalty(module),
        lambda: sp.rebase(module),
    )
    for function in functions:
        with refused(rf"(module|model): expected.*got.*{match}"):
            function()


def test_a_tensor_without_a_module_gets_one() -> None:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.randn(4, 4))
    sp.constrain(module, "weight", sp.ScaledCayley())
    torch.testing.assert_close(module.weight.mT @ module.weight, torch.eye(4))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (torch.nn.Parameter(torch.eye(4)), r"Parameter of shape \(4, 4\)"),
        (torch.nn.Linear(4, 4), "Linear"),
        (sp.ScaledCayley(), "ScaledCayley"),
        (["weight"], "list.*pattern"),
        (None, "None"),
    ],
)
def test_what_is_no_name_is_named(name, match) -> None:
    layer = torch.nn.Linear(4, 4)
    with refused(f"tensor_name: expected.*got.*{match}"):
        sp.constrain(layer, name, "weight")
    with refused(f"tensor_name: expected.*got.*{match}"):
        sp.remove(layer, name)
    assert not parametrize.is_parametrized(layer)


@pytest.mark.parametrize(
    ("module", "tensor_name", "match"),
    [
        (torch.nn.Conv2d(4, 4, 3), "weight", "Conv2d: expected.*orthogonium"),
        (torch.nn.Conv2d(4, 4, 2, stride=2, padding=1), "weight", "Conv2d: expected"),
        (torch.nn.Conv2d(4, 4, 2, stride=2, dilation=2), "weight", "Conv2d: expected"),
        (torch.nn.ConvTranspose1d(4, 4, 2), "weight", "ConvTranspose1d: expected"),
    ],
)
def test_weights_that_only_look_like_matrices(module, tensor_name, match) -> None:
    before = getattr(module, tensor_name).detach().clone()
    for make in (sp.SpectralRadiusNorm, sp.ScaledCayley):
        with refused(match):
            sp.constrain(module, tensor_name, make())
    assert torch.equal(getattr(module, tensor_name), before)


def test_kernels_of_one_point_are_not_gates() -> None:
    layer = torch.nn.Conv1d(3, 4, 1)
    with refused("Conv1d|shape", error=sp.errors.NotSquareError):
        parametrize.register_parametrization(layer, "weight", sp.SpectralRadiusNorm())
    assert not parametrize.is_parametrized(layer)


def test_a_failed_verb_leaves_the_weight_alone() -> None:
    layer = torch.nn.Linear(4, 4)
    before = layer.weight.detach().clone()
    with refused("4"):
        sp.constrain(layer, "weight", sp.ScaledCayley(negative_ones=9), init=torch.nn.init.eye_)
    assert torch.equal(layer.weight, before)


def test_chained_behind_another_parametrization() -> None:
    """Low rank first, then the radius: the one registered last acts last."""

    class Masked(torch.nn.Module):
        def forward(self, X):
            return X * torch.tril(torch.ones_like(X))

    layer = torch.nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Masked())
    parametrize.register_parametrization(layer, "weight", sp.SpectralRadiusNorm())
    W = layer.weight
    assert W.triu(1).abs().max() == 0
    assert W.diagonal().abs().max().item() == pytest.approx(1, abs=1e-6)


def test_param_groups_partition_the_parameters() -> None:
    model = torch.nn.ModuleList([sp.nn.ENRNN(2, 4, 3), torch.nn.Linear(7, 1)])
    rest, slow = sp.param_groups(model, lr=1e-3, constrained_lr=1e-4)
    assert (rest["lr"], slow["lr"]) == (1e-3, 1e-4)
    assert [tuple(p.shape) for p in slow["params"]] == [(4, 4), (3, 3)], "the coupling is not constrained"
    ids = [id(p) for group in (rest, slow) for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in model.parameters())


def test_param_groups_have_defaults_for_constrained_weights() -> None:
    model = torch.nn.ModuleList([sp.nn.ScoRNN(2, 4), torch.nn.Linear(4, 1)])
    rest, slow = sp.param_groups(model, lr=1e-2)
    assert (rest["lr"], slow["lr"]) == (1e-2, 1e-3)
    optimizer = torch.optim.AdamW(sp.param_groups(model, lr=1e-2, weight_decay=0.1))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    optimizer = torch.optim.AdamW(sp.param_groups(model, lr=1e-2), weight_decay=0.2)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.2]


def test_param_groups_of_one_constraint() -> None:
    rnn = sp.nn.ENRNN(2, 4, 3)
    _, slow = sp.param_groups(rnn, 1e-3, 1e-4, constrained=sp.ScaledCayley)
    assert [tuple(p.shape) for p in slow["params"]] == [(4, 4)]


def test_param_groups_find_the_reflections_of_singular_values() -> None:
    rnn = sp.nn.SpectralRNN(2, 6)
    rest, slow = sp.param_groups(rnn, lr=1e-3, constrained_lr=1e-4, constrained=sp.Householder)
    assert [tuple(p.shape) for p in slow["params"]] == [(6, 6), (6, 6)]
    assert len(rest["params"]) + 2 == len(list(rnn.parameters()))


def test_param_groups_without_decay_are_those_of_the_patterns() -> None:
    model = torch.nn.Sequential(sp.nn.ScoRNN(2, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 1))
    for decay in (0.1, None):
        rest, slow, free = sp.param_groups(model, lr=1e-2, weight_decay=decay, without_decay=("*bias", "1.*"))
        names = {id(p): name for name, p in model.named_parameters()}
        assert sorted(names[id(p)] for p in free["params"]) == sorted(
            name for name in names.values() if name.endswith("bias") or name.startswith("1.")
        )
        assert (free["lr"], free["weight_decay"], rest.get("weight_decay")) == (1e-2, 0.0, decay)
        ids = [id(p) for group in (rest, slow, free) for p in group["params"]]
        assert sorted(ids) == sorted(names)
    (group,) = sp.param_groups(model[2], lr=1e-2, without_decay="*")
    assert group["weight_decay"] == 0
    slow, free = sp.param_groups(model, lr=1e-2, without_decay="*")  # Constrained ones keep their group.
    assert (len(slow["params"]), len(free["params"])) == (1, len(names) - 1)
    with refused(r"without_decay.*'\*norm\*'"):
        sp.param_groups(model, lr=1e-2, without_decay=["*bias", "*norm*"])


def test_param_groups_without_constraints() -> None:
    assert len(sp.param_groups(torch.nn.Linear(2, 2), 1e-3, 1e-4)) == 1


def test_param_groups_of_a_constraint_that_is_chained_second() -> None:
    layer = torch.nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", torch.nn.Identity())
    parametrize.register_parametrization(layer, "weight", sp.SpectralRadiusNorm())
    assert len(sp.param_groups(layer, 1e-3, 1e-4)) == 2


def test_num_free_parameters_of_partly_frozen_blocks() -> None:
    blocks = [(3, sp.ScaledCayley()), (2, None)]
    layer = sp.constrain(
        torch.nn.Linear(5, 5, bias=False), "weight", sp.BlockTriangular(blocks, coupling=True)
    )
    assert sp.num_free_parameters(layer) == 3 + 4 + 6
    originals = list(layer.parameters())
    originals[0].requires_grad_(False)
    assert sp.num_free_parameters(layer) == 4 + 6
    originals[1].requires_grad_(False)
    assert sp.num_free_parameters(layer) == 6


# What is left when one original after the other is frozen and then trained again; n = 6.
PARTLY_FROZEN = {
    "ScaledCayley": (sp.ScaledCayley, torch.complex64, 42, [6, 36]),
    "Householder": (sp.Householder, torch.complex64, 36, [6, 30]),
    "Householder-3": (lambda: sp.Householder(3), torch.complex64, 27, [3, 24]),
    "SingularValues": (sp.SingularValues, torch.float32, 36, [21, 21, 30]),
    "SingularValues-2": (lambda: sp.SingularValues(reflections=2), torch.float32, 24, [15, 15, 18]),
    "SingularValues-complex": (sp.SingularValues, torch.complex64, 72, [48, 72, 48, 72, 72]),
    "Givens": (sp.Givens, torch.complex64, 36, [21, 21, 30]),
    "FourierUnitary": (sp.FourierUnitary, torch.complex64, 42, [18, 24]),
}


@pytest.mark.parametrize(("make", "dtype", "all_of_them", "left"), PARTLY_FROZEN.values(), ids=PARTLY_FROZEN)
def test_num_free_parameters_of_partly_frozen_weights(make, dtype, all_of_them, left) -> None:
    layer = torch.nn.Linear(6, 6, bias=False, dtype=dtype)
    sp.constrain(layer, "weight", make(), init="paper")
    assert sp.num_free_parameters(layer) == all_of_them
    for original, expected in zip(layer.parameters(), left, strict=True):
        original.requires_grad_(False)
        assert sp.num_free_parameters(layer) == expected
        original.requires_grad_(True)


def test_free_parameters_of_a_module_are_counted_once() -> None:
    complex_layer = torch.nn.Linear(4, 4, bias=False, dtype=torch.complex64)
    assert sp.num_free_parameters(complex_layer) == 32
    assert sp.num_free_parameters(sp.constrain(complex_layer, "weight", sp.ScaledCayley())) == 16 + 4
    assert sp.num_free_parameters(sp.constrain(torch.nn.LSTM(3, 5), "weight_hh_l0", sp.ScaledCayley())) == (
        4 * 10 + 20 * 3 + 2 * 20
    )
    shared = torch.nn.Linear(4, 4)
    assert sp.num_free_parameters(torch.nn.ModuleList([shared, shared])) == 20
    shared.bias.requires_grad_(False)
    assert sp.num_free_parameters(shared) == 16


# Patterns, chains, refusals ------------------------------------------------------------------------


def test_a_pattern_constrains_each_match_with_a_copy() -> None:
    constraint = sp.SpectralRadiusNorm(0.8)
    lstm = sp.constrain(torch.nn.LSTM(3, 6, num_layers=2), "weight_hh_l*", constraint)
    first, second = (lstm.parametrizations[f"weight_hh_l{i}"][0] for i in range(2))
    assert first is not second
    assert first is not constraint
    assert (first.gates, second.gates) == (4, 4)
    for weight in (lstm.weight_hh_l0, lstm.weight_hh_l1):
        torch.testing.assert_close(radii(weight), torch.full((4,), 0.8))
    assert not parametrize.is_parametrized(lstm, "weight_ih_l0")


def test_a_pattern_of_tensors_of_submodules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    sp.constrain(model, "*.weight", sp.ScaledCayley())
    assert all(orthogonality_defect(layer.weight).max() < 1e-5 for layer in model)
    with refused(r"'gain\*'", "0.bias, 0.weight, 1.bias, 1.weight"):
        sp.constrain(model, "gain*", sp.ScaledCayley())


def test_a_pattern_of_which_one_match_fails_changes_nothing() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 5))
    before = model[0].weight
    values = before.detach().clone()
    with pytest.raises(sp.errors.NotSquareError):
        sp.constrain(model, "*.weight", sp.SpectralRadiusNorm())
    assert model[0].weight is before
    assert torch.equal(before, values)


@pytest.mark.parametrize("layer", ["LSTM", "LSTMCell", "GRU", "GRUCell"])
def test_gates_are_those_of_the_module(layer) -> None:
    module = getattr(torch.nn, layer)(3, 5)
    name = "weight_hh" if layer.endswith("Cell") else "weight_hh_l0"
    gates = getattr(module, name).shape[0] // 5
    sp.constrain(module, name, sp.SpectralRadiusNorm(0.5))
    torch.testing.assert_close(radii(getattr(module, name)), torch.full((gates,), 0.5))


def test_a_projected_state_has_no_square_gates() -> None:
    lstm = torch.nn.LSTM(3, 8, proj_size=4)
    with refused("8", "got 4"):
        sp.constrain(lstm, "weight_hh_l0", sp.SpectralRadiusNorm())
    sp.constrain(lstm, "weight_h*_l0", sp.ScaledCayley())
    identity = torch.eye(4)
    for gate in lstm.weight_hh_l0.unflatten(0, (4, 8)):
        torch.testing.assert_close(gate.mT @ gate, identity, atol=1e-5, rtol=0)
    torch.testing.assert_close(lstm.weight_hr_l0 @ lstm.weight_hr_l0.mT, identity, atol=1e-5, rtol=0)


def test_rows_are_gates_only_where_it_is_said() -> None:
    layer = torch.nn.Linear(5, 20)
    with refused(r"\(20, 5\)", "ScaledCayley", error=sp.errors.NotSquareError) as error:
        sp.constrain(layer, "weight", sp.SpectralRadiusNorm())
    assert "gates" not in str(error.value)
    whole = sp.constrain(torch.nn.Linear(5, 20), "weight", sp.ScaledCayley()).weight
    torch.testing.assert_close(whole.mT @ whole, torch.eye(5), atol=1e-5, rtol=0)
    layer = sp.constrain(torch.nn.Linear(5, 20), "weight", sp.ScaledCayley(), gates=4)
    assert orthogonality_defect(layer.weight).max() < 1e-5
    with refused("expected 3 gates", error=sp.errors.NotSquareError):
        sp.constrain(torch.nn.Linear(5, 20), "weight", sp.ScaledCayley(), gates=3)


def has_orthonormal_columns(W):
    W = W if W.shape[-2] >= W.shape[-1] else W.mT
    return bool((W.mT @ W - torch.eye(W.shape[-1])).abs().max() < 1e-5)


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.Householder, sp.SkewExponential])
@pytest.mark.parametrize(
    ("module", "name", "blocks"),
    [
        (torch.nn.Linear(16, 64), "weight", 1),
        (torch.nn.Linear(64, 16), "weight", 1),
        (torch.nn.Embedding(50, 8), "weight", 1),
        (torch.nn.Bilinear(5, 3, 4), "weight", 1),
        (torch.nn.LSTM(3, 8), "weight_ih_l0", 4),
        (torch.nn.LSTM(8, 8), "weight_ih_l0", 4),
        (torch.nn.GRUCell(3, 8), "weight_ih", 3),
        (torch.nn.MultiheadAttention(8, 2), "in_proj_weight", 3),
        (torch.nn.MultiheadAttention(8, 2), "out_proj.weight", 1),
        (torch.nn.TransformerEncoderLayer(8, 2, 16), "linear?.weight", 1),
    ],
    ids=str,
)
def test_weights_of_any_module(make, module, name, blocks) -> None:
    module = sp.constrain(copy.deepcopy(module), name, make())
    owner_name, _, tensor = name.rpartition(".")
    for each in ("linear1", "linear2") if "?" in name else (owner_name,):
        W = getattr(module.get_submodule(each), tensor)
        assert has_orthonormal_columns(W.unflatten(0, (blocks, -1)) if blocks > 1 else W)
        weights = module.get_submodule(each).parametrizations[tensor]
        originals = list(weights.parameters(recurse=False))
        torch.testing.assert_close(weights[0](*originals), W, atol=0, rtol=0)
        W.square().sum().backward()


def test_the_whole_of_an_input_projection() -> None:
    attention = sp.constrain(torch.nn.MultiheadAttention(8, 2), "in_proj_weight", sp.ScaledCayley(), gates=1)
    assert has_orthonormal_columns(attention.in_proj_weight)
    x = torch.randn(5, 3, 8)
    attention(x, x, x)[0].sum().backward()


KERNELS = {
    "Conv1d of size 1": (torch.nn.Conv1d(4, 6, 1), torch.randn(2, 4, 9)),
    "Conv2d of size 1 with a stride": (
        torch.nn.Conv2d(6, 4, 1, stride=2, padding=1),
        torch.randn(2, 6, 9, 9),
    ),
    "patches": (torch.nn.Conv2d(3, 20, 4, stride=4), torch.randn(2, 3, 8, 12)),
    "patches in three dimensions": (torch.nn.Conv3d(1, 9, 2, stride=2), torch.randn(2, 1, 4, 4, 4)),
    "patches in groups": (torch.nn.Conv2d(4, 6, 2, stride=2, groups=2), torch.randn(2, 4, 6, 6)),
    "transposed": (torch.nn.ConvTranspose2d(6, 3, 2, stride=2), torch.randn(2, 6, 4, 4)),
    "transposed in groups": (torch.nn.ConvTranspose1d(6, 4, 3, stride=3, groups=2), torch.randn(2, 6, 5)),
}


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.Householder, lambda: sp.SingularValues(0.1)])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_is_a_matrix_bounds_the_layer(name, make) -> None:
    """The singular values of the layer, as a matrix on images, are those of its kernel, and 0."""
    module, x = KERNELS[name]
    layer = sp.constrain(copy.deepcopy(module), "weight", make()).double()
    x = x[:1].double()
    J = torch.autograd.functional.jacobian(lambda x: layer(x) - layer(0 * x), x)
    sigma = torch.linalg.svdvals(J.reshape(-1, x.numel()))
    sigma = sigma[sigma > 1e-9]
    assert len(sigma) > 0
    assert ((sigma - 1).abs() <= (0.1 if isinstance(make(), sp.SingularValues) else 1e-6)).all()
    layer(x).square().sum().backward()
    state = copy.deepcopy(layer.state_dict())
    fresh = sp.constrain(copy.deepcopy(module).double(), "weight", make())
    fresh.load_state_dict(state)
    assert torch.equal(fresh.weight, layer.weight)
    layer.weight = layer.weight.detach()


def test_groups_of_a_convolution_are_its_gates() -> None:
    with refused("gates: expected"):
        sp.constrain(torch.nn.Conv1d(4, 4, 1), "weight", sp.ScaledCayley(), gates=2)


def test_a_pruned_weight_is_refused() -> None:
    layer = prune.random_unstructured(torch.nn.Linear(4, 4), "weight", 0.5)
    for name in ("weight", "weight_orig", "weight_mask", "weight*"):
        with refused("weight", "prune"):
            sp.constrain(layer, name, sp.ScaledCayley())
    prune.remove(layer, "weight")
    sp.constrain(layer, "weight*", sp.ScaledCayley())


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_a_weight_that_a_hook_computes_is_refused(kind) -> None:
    layer = getattr(torch.nn.utils, kind)(torch.nn.Linear(4, 4))
    for name in (*(key for key, _ in layer.named_parameters() if key != "bias"), "weight", "weight*"):
        with refused("weight", f"remove_{kind}"):
            sp.constrain(layer, name, sp.ScaledCayley())
    getattr(torch.nn.utils, f"remove_{kind}")(layer)  # The remedies.
    sp.constrain(layer, "weight*", sp.ScaledCayley())
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
    sp.constrain(layer, "weight*", sp.SpectralRadiusNorm())


def test_a_scripted_module_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(torch.nn.Linear(4, 4))
    with refused("module", "script"):
        sp.constrain(scripted, "weight", sp.ScaledCayley())


@pytest.mark.parametrize("argument", [{"sparse": True}, {"max_norm": 1.0}])
def test_an_embedding_that_does_more_is_refused(argument) -> None:
    with refused("[Ee]mbedding"):
        sp.constrain(torch.nn.Embedding(4, 4, **argument), "weight", sp.ScaledCayley())


def test_another_library_does_not_know_kernels() -> None:
    with refused("kernel"):
        sp.constrain(torch.nn.Conv1d(4, 4, 1), "weight", torch.nn.Identity())


class Rows(sp.Parametrization):
    """Rows of sum 1."""

    shapes, convolutions = "any", "entries"

    def reference(self, T):
        return T - (T.sum(dim=-1, keepdim=True) - 1) / T.shape[-1]

    def outside(self, W, eps):
        return (W.sum(dim=-1) - 1).abs().amax(dim=-1), 100 * eps

    near = reference

    def invert(self, W):
        return W.clone()


def filters(layer) -> torch.Tensor:
    """The kernel of each output channel, as rows, written apart from the library."""
    W = layer.weight.detach()
    if layer.transposed:  # (groups · inputs, outputs, ...)
        W = W.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1)
    return W.flatten(1)


OVERLAPPING = {
    "Conv1d": lambda: torch.nn.Conv1d(4, 6, 3, dilation=2, padding=2),
    "Conv2d": lambda: torch.nn.Conv2d(4, 6, 3, groups=2, padding_mode="reflect", padding=1),
    "Conv3d": lambda: torch.nn.Conv3d(2, 3, 2),
    "ConvTranspose1d": lambda: torch.nn.ConvTranspose1d(4, 6, 3),
    "ConvTranspose2d": lambda: torch.nn.ConvTranspose2d(4, 6, (3, 2), stride=2, groups=2),
}


@pytest.mark.parametrize("with_optimizer", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_constraints_on_entries_take_every_kernel(name, with_optimizer) -> None:
    layer = OVERLAPPING[name]()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    expected = Rows().project(filters(layer))
    options = {"optimizer": optimizer} if with_optimizer else {}
    sp.constrain(layer, "weight", Rows(), **options)
    torch.testing.assert_close(filters(layer), expected)
    optimizer = optimizer if with_optimizer else torch.optim.SGD(layer.parameters(), lr=0.5)
    layer.weight.square().sum().backward()
    optimizer.step()
    assert not torch.allclose(filters(layer), expected)
    torch.testing.assert_close(filters(layer).sum(dim=1), torch.ones(len(expected)))
    assert sp.violation(layer)["weight"] == 0
    (m, n), groups = expected.shape, layer.groups
    shape = (m, n) if groups == 1 else (groups, m // groups, n)
    signs = torch.full(shape, torch.nan)
    signs[..., 0, -1] = 0
    sp.remove(layer)
    before = filters(layer).reshape(shape)
    sp.constrain(layer, "weight", sp.SignPattern(signs))
    assert torch.equal(filters(layer).reshape(shape), torch.where(signs == 0, 0, before))
    sp.remove(layer)
    sp.constrain(layer, "weight", sp.Stochastic(), init=torch.nn.init.ones_)
    torch.testing.assert_close(filters(layer), torch.full((m, n), 1 / n))


def test_an_error_about_a_kernel_says_how_to_act_on_its_entries() -> None:
    class Own(Rows):
        convolutions = "matrix"

    conv = torch.nn.Conv2d(4, 4, 3)
    for options in ({}, {"optimizer": torch.optim.SGD(conv.parameters(), 0.1)}):
        for wrong in (Own(), sp.ScaledCayley(), [Rows(), Own()], torch.nn.Identity()):
            if options and not isinstance(wrong, sp.Parametrization):
                continue
            with refused("Conv2d: expected .*convolutions = 'entries'"):
                sp.constrain(conv, "weight", wrong, **options)
    assert type(conv) is torch.nn.Conv2d
    Own.convolutions = "entries"  # The remedy.
    sp.constrain(conv, "weight", Own())
    torch.testing.assert_close(filters(conv).sum(dim=1), torch.ones(4))
    Own.convolutions = "rows"
    with refused("Own.convolutions: expected one of matrix, entries, layer, got 'rows'"):
        sp.constrain(torch.nn.Conv2d(4, 4, 3), "weight", Own())


def test_a_norm_of_the_layer_after_signs_of_its_entries() -> None:
    pattern = torch.full((4, 18), torch.nan)
    pattern[:, ::2] = 0
    conv = torch.nn.Conv2d(2, 4, 3)
    sp.constrain(conv, "weight", [sp.SignPattern(pattern), sp.SpectralNorm(0.1)])
    assert not bool(filters(conv)[:, ::2].any())
    x = torch.randn(8, 2, 9, 9)
    difference = conv(x) - conv(torch.zeros_like(x))
    assert bool((difference.flatten(1).norm(dim=1) <= 0.1 * x.flatten(1).norm(dim=1)).all())
    with refused("padding_mode"):
        reflected = torch.nn.Conv2d(2, 4, 1, padding=1, padding_mode="reflect")
        sp.constrain(reflected, "weight", [sp.SignPattern(torch.ones(4, 2)), sp.SpectralNorm(0.1)])


def test_a_tensor_that_is_registered_twice() -> None:
    class Wrapper(torch.nn.Module):
        """As neuromancer's ``slim.Linear``."""

        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.weight = self.linear.weight

    module = Wrapper()
    for name in ("weight", "linear.weight"):
        with refused("'weight'", r"'(linear\.)?weight'"):
            sp.constrain(module, name, sp.SpectralRadiusNorm())
    assert not parametrize.is_parametrized(module)


def test_an_error_names_the_match_of_a_pattern_that_it_is_about() -> None:
    def layers():
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Conv2d(4, 4, 3))

    net = layers()
    with refused(r"1.weight .*'\*.weight'", "ScaledCayley", error=sp.errors.NotAMatrixError):
        sp.constrain(net[:2], "*.weight", sp.ScaledCayley())
    with refused(r"2.weight .*'\[02\].weight'", "Conv2d: expected"):
        sp.constrain(net, "[02].weight", sp.ScaledCayley())
    with refused("Conv2d: expected"):
        sp.constrain(net, "2.weight", sp.ScaledCayley())
    assert list(net.state_dict()) == list(layers().state_dict())


def test_a_large_model_is_not_listed_whole() -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(15)))
    with refused("0.weight, .*, 9.bias, and 10 others"):
        sp.constrain(net, "layer.weight", sp.ScaledCayley())


def test_a_lazy_module_is_refused() -> None:
    with refused("LazyLinear: expected", "'weight'"):
        sp.constrain(torch.nn.LazyLinear(4), "weight", sp.SpectralRadiusNorm())


def test_what_newcomers_pass_to_constructors_is_answered_with_what_to_write() -> None:
    with refused(r"got float.* SchurForm\(radius="):
        sp.SchurForm(0.9)  # type: ignore[arg-type]
    with refused(r"\(3,\).* signs\.expand\(n, n\)"):
        sp.SignPattern(torch.tensor([1.0, 1.0, -1.0]))
    signs = torch.ones(3).expand(3, 3)
    with refused("pattern: expected", "NaN everywhere", r"clone\(\)"):
        sp.SignPattern(signs.fill_diagonal_(torch.nan))  # Of one memory for all rows.
    for pattern in ("a", None):
        with refused(rf"pattern: expected.*got {pattern!r}"):
            sp.SignPattern(pattern)  # type: ignore[arg-type]
    with refused(r"\['spectral_radius'\]"):
        sp.constrain(torch.nn.Linear(4, 4), "weight", "spectral_radius")  # type: ignore[arg-type]
    with refused("scipy sparse matrix", "float", error=TypeError):
        sp.init.spectral_radius_(0.9, torch.empty(4, 4))  # type: ignore[arg-type]


def test_a_class_or_a_used_instance() -> None:
    with refused("instance"):
        sp.constrain(torch.nn.Linear(4, 4), "weight", sp.SpectralRadiusNorm)
    used = sp.constrain(torch.nn.Linear(4, 4), "weight", sp.ScaledCayley()).parametrizations.weight[0]
    with refused("ScaledCayley"):
        sp.constrain(torch.nn.Linear(4, 4), "weight", used)


LATER = {
    "SpectralRadiusNorm": (sp.SpectralRadiusNorm, lambda W: (radii(W) - 1).abs()),
    "SpectralAbscissa": (lambda: sp.SpectralAbscissa(-0.1), lambda W: (abscissas(W) + 0.1).abs()),
    "ScaledCayley": (sp.ScaledCayley, orthogonality_defect),
    "SkewExponential": (sp.SkewExponential, orthogonality_defect),
    "Householder": (sp.Householder, orthogonality_defect),
    "SignPattern": (lambda: sp.SignPattern(torch.eye(6)), lambda W: (W - W.diag().diag()).abs().max()),
}


FOR_REAL_WEIGHTS = ("Skew", "Sign")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in LATER
        for dtype in (torch.float64, torch.complex128)
        if not (dtype.is_complex and name.startswith(FOR_REAL_WEIGHTS))
    ],
)
def test_each_constraint_works_as_a_later_link(name, dtype) -> None:
    make, violation = LATER[name]

    def chained():
        layer = torch.nn.Linear(6, 6, dtype=dtype)
        if dtype.is_complex:  # For which PyTorch has no weight_norm.
            parametrize.register_parametrization(layer, "weight", torch.nn.Identity())
        else:
            torch.nn.utils.parametrizations.weight_norm(layer)
        return sp.constrain(layer, "weight", make())

    layer = chained()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    x = torch.randn(7, 6, dtype=dtype)
    before = layer.weight.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        (layer(x) - x.flip(-1)).abs().square().sum().backward()
        assert all(p.grad.isfinite().all() for p in layer.parameters())
        optimizer.step()
        assert violation(layer.weight.detach()).max() < 1e-9
    assert not torch.equal(layer.weight, before)
    clone = chained()
    clone.load_state_dict(layer.state_dict())
    assert torch.equal(clone.weight, layer.weight)
    parametrize.remove_parametrizations(layer, "weight")
    assert torch.equal(layer.weight, clone.weight)


@pytest.mark.parametrize("name", ["orthogonal", "spectral_norm"])
def test_a_constraint_of_torch_before_is_warned_of_and_the_remedy_works(name) -> None:
    theirs = getattr(torch.nn.utils.parametrizations, name)
    layer = theirs(torch.nn.Linear(6, 6)).eval()
    with pytest.warns(UserWarning, match=r"expected .* got weight \(_.*remove_parametrizations"):
        sp.constrain(layer, "weight", sp.SpectralNorm(0.5))
    layer = theirs(torch.nn.Linear(6, 6)).eval()
    before = layer.weight.detach().clone()
    parametrize.remove_parametrizations(layer, "weight")
    sp.constrain(layer, "weight", sp.SpectralNorm("present"))
    torch.testing.assert_close(layer.weight, before)


def test_a_chain_of_signs_and_radius() -> None:
    signs = torch.ones(8, 8)
    signs[:, 5:], signs[0, 1] = -1, 0
    layer = sp.constrain(torch.nn.Linear(8, 8), "weight", [sp.SignPattern(signs), sp.SpectralRadiusNorm(0.9)])
    for _ in range(3):
        W = layer.weight
        assert radii(W).item() == pytest.approx(0.9, abs=1e-5)
        assert (W * signs >= 0).all()
        assert W[0, 1] == 0
        layer.parametrizations.weight.original.data.normal_()
    assert sp.num_free_parameters(layer) == 63 + 8
    layer.weight = 0.9 * W.detach() / radii(W.detach())
    with refused("SignPattern", error=sp.errors.InManifoldError):
        layer.weight = -layer.weight.detach()


def test_init_of_a_chain_and_behind_a_parametrization() -> None:
    with refused("init", "'paper'"):
        sp.constrain(
            torch.nn.Linear(3, 3), "weight", [sp.ScaledCayley(), sp.SpectralRadiusNorm()], init="paper"
        )
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))
    with refused("init", "'weight'"):
        sp.constrain(layer, "weight", sp.ScaledCayley(), init=torch.nn.init.eye_)


# Other libraries -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "init", [None, "paper", torch.nn.init.eye_, 2 * torch.eye(5)], ids=["None", "paper", "eye", "tensor"]
)
def test_a_manifold_of_geotorch(init) -> None:
    layer = sp.constrain(torch.nn.Linear(5, 5), "weight", geotorch.SO(torch.Size((5, 5))), init=init)
    assert orthogonality_defect(layer.weight).max() < 1e-5
    if init is torch.nn.init.eye_:
        torch.testing.assert_close(layer.weight, torch.eye(5), atol=1e-5, rtol=0)
    assert isinstance(layer.parametrizations.weight[0], geotorch.SO)
    with pytest.warns(UserWarning, match=r"got weight \(SO\)"):
        sp.constrain(layer, "weight", sp.SpectralRadiusNorm(0.5))
    assert radii(layer.weight).item() == pytest.approx(0.5, abs=1e-5)


def test_a_manifold_of_geotorch_that_can_project_takes_the_nearest_weight() -> None:
    layer = torch.nn.Linear(8, 6)
    U, s, Vh = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
    sp.constrain(layer, "weight", geotorch.LowRank((6, 8), rank=2))
    torch.testing.assert_close(layer.weight, (U[:, :2] * s[:2]) @ Vh[:2], atol=1e-5, rtol=0)


def test_a_manifold_of_geotorch_as_a_block_and_as_p() -> None:
    blocks = [(4, geotorch.SO(torch.Size((4, 4)))), (3, sp.SpectralRadiusNorm(0.5))]
    W = sp.constrain(torch.nn.Linear(7, 7), "weight", sp.BlockTriangular(blocks)).weight
    assert orthogonality_defect(W[:4, :4]).max() < 1e-5
    layer = torch.nn.Linear(4, 4)
    schur = sp.SchurForm(P=geotorch.SO(torch.Size((4, 4))), radius=0.5)
    assert radii(sp.constrain(layer, "weight", schur).weight).item() <= 0.5 + 1e-5


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_the_protocol_of_geotorch(case) -> None:
    dtype = case.dtypes[0]
    layer = torch.nn.Linear(4, 4, bias=False, dtype=dtype)
    sp.constrain(layer, "weight", case.make((4, 4)), init=from_any(case))
    constraint = layer.parametrizations.weight[0]
    before = [t.clone() for t in layer.state_dict().values()]
    W = constraint.sample()
    assert W.shape == (4, 4)
    assert W.dtype == dtype
    assert case.violation(W).max() < 1e-4
    assert constraint.in_manifold(layer.weight)
    if case.recovers and case.name != "Givens-two-layers":
        assert constraint.in_manifold(W)
    if case.outside is not None:
        assert not constraint.in_manifold(case.outside((4, 4), dtype))
    assert not constraint.in_manifold(torch.ones(3, dtype=dtype))
    assert all(map(torch.equal, before, layer.state_dict().values())), "expected no change of the constraint"
    with refused("registered constraint"):
        case.make((4, 4)).sample()


# What other programs do with a constrained module --------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_weights_are_contiguous(case) -> None:
    """As those of the layer without a constraint: code of others takes views of them."""
    for shape in (*case.shapes, *case.rectangles):
        module = holder(case, case.member(shape, case.dtypes[0]))
        first, second = module.weight, module.weight
        originals = [t.detach() for t in module.parametrizations.weight.parameters(recurse=False)]
        transformed = torch.func.vjp(module.parametrizations.weight[0], *originals)[0]
        plain = module.requires_grad_(False).weight
        assert all(W.is_contiguous() for W in (first, second, transformed, plain)), shape


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_originals_are_contiguous(case) -> None:
    """As FSDP2, LBFGS, ``parameters_to_vector`` and safetensors ask."""
    layer = torch.nn.Linear(4, 4, bias=False, dtype=case.dtypes[0])
    sp.constrain(layer, "weight", case.make((4, 4)), init=from_any(case))
    assert all(p.is_contiguous() for p in layer.parameters())
    layer.weight = layer.weight.detach()
    assert all(p.is_contiguous() for p in layer.parameters())
    if not case.dtypes[0].is_complex:
        vector = torch.nn.utils.parameters_to_vector(layer.parameters())
        torch.nn.utils.vector_to_parameters(0.9 * vector, layer.parameters())
        optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=2)

        def closure():
            optimizer.zero_grad()
            loss = (layer.weight - torch.eye(4)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        assert case.violation(layer.weight.detach()).max() < 1e-4


@pytest.mark.parametrize("inside", [True, False])
def test_functional_call_names_the_tensors_behind_the_weight(inside) -> None:
    """PyTorch would detach a weight of the set in silence; for both, the message names the originals."""
    layer = sp.constrain(torch.nn.Linear(3, 3), "weight", sp.ScaledCayley())
    before = copy.deepcopy(layer.state_dict())
    x, W = torch.randn(2, 3), torch.randn(3, 3)
    leaf = torch.linalg.qr(W).Q.requires_grad_() if inside else W
    for weight in (leaf, leaf * 1):
        for model, prefix in ((layer, ""), (torch.nn.Sequential(layer), "0.")):
            with refused(r"functional_call.*'parametrizations\.weight\.original'"):
                torch.func.functional_call(
                    model, {f"{prefix}bias": 2 * layer.bias, f"{prefix}weight": weight}, x
                )
    assert all(torch.equal(layer.state_dict()[key], value) for key, value in before.items())
    with refused(r"functional_call.*'parametrizations\.weight\.original'"):
        torch.func.grad(lambda w: torch.func.functional_call(layer, {"weight": w}, x).sum())(torch.eye(3))
    with refused(r"transform.*'parametrizations\.weight\.original'"):
        torch.func.grad(lambda w: setattr(layer, "weight", w) or layer(x).sum())(torch.eye(3))
    name = "parametrizations.weight.original"
    y = torch.func.functional_call(layer, {name: W}, x)
    expected = sp.constrain(torch.nn.Linear(3, 3), "weight", sp.ScaledCayley())
    expected.load_state_dict({**layer.state_dict(), name: W})
    torch.testing.assert_close(y, expected(x))


def test_functional_call_names_each_of_several_originals() -> None:
    layer = sp.constrain(torch.nn.Linear(3, 3), "weight", sp.SchurForm())
    with refused(r"'parametrizations\.weight\.original0', 'parametrizations\.weight\.original1'"):
        torch.func.functional_call(layer, {"weight": layer.weight}, torch.randn(2, 3))


def test_assignment_within_functional_call_stays() -> None:
    """A module may tie a weight in its forward pass, and a weight of another layer may be assigned."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (sp.constrain(torch.nn.Linear(3, 3), "weight", sp.ScaledCayley()) for _ in "ab")

        def forward(self, x):
            self.b.weight = self.a.weight
            return self.b(x)

    model, x = Tied(), torch.randn(2, 3)
    torch.testing.assert_close(torch.func.functional_call(model, {"b.bias": model.a.bias}, x), model.a(x))


def test_a_kept_weight_follows_whatever_it_depends_on() -> None:
    """Originals, also through ``.data``; buffers; attributes, also of nested constraints."""
    blocks = [(3, sp.ScaledCayley()), (2, sp.SpectralRadiusNorm(0.9))]
    layer = sp.constrain(torch.nn.Linear(5, 5), "weight", sp.BlockTriangular(blocks))
    constraint = layer.parametrizations.weight[0]
    W = layer.weight.detach().clone()
    assert torch.equal(layer.weight, W)
    constraint.blocks[1].radius = 0.5
    torch.testing.assert_close(layer.weight[3:, 3:], W[3:, 3:] * 0.5 / 0.9)
    constraint.blocks[0].signs.mul_(-1)
    torch.testing.assert_close(layer.weight[:3, :3], -W[:3, :3])
    constraint.blocks[0].signs.data.mul_(-1)
    torch.testing.assert_close(layer.weight[:3, :3], W[:3, :3])
    layer.parametrizations.weight.original0.data.zero_()
    torch.testing.assert_close(layer.weight[:3, :3], constraint.blocks[0].signs.diag())


def test_reads_of_one_weight_have_graphs_of_their_own() -> None:
    """Two losses, each with its backward pass, as of a discriminator."""
    for case in CASES:
        layer = torch.nn.Linear(4, 4, bias=False, dtype=case.dtypes[-1])
        sp.constrain(layer, "weight", case.make((4, 4)), init=from_any(case))
        G = torch.randn(4, 4, dtype=case.dtypes[-1])
        first, second = ((layer.weight * G).abs().square().sum() for _ in range(2))
        tensors = tuple(layer.parameters())
        one = torch.autograd.grad(first, tensors, retain_graph=True)
        (again,) = torch.autograd.grad(second, tensors[0], create_graph=True)
        torch.testing.assert_close(again, one[0], msg=case.name)
        if again.requires_grad:
            expected = torch.autograd.grad(
                torch.autograd.grad(first, tensors[0], create_graph=True)[0].abs().square().sum(), tensors[0]
            )
            actual = torch.autograd.grad(again.abs().square().sum(), tensors[0])
            torch.testing.assert_close(actual, expected, msg=case.name)


class Scaled(torch.nn.Module):
    """A parametrization of another library, with a setting and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale, self.gain = 2.0, torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, X):
        return self.scale * self.gain * X

    def right_inverse(self, W):
        return W / (self.scale * self.gain.detach())


class Sine(torch.nn.Module):
    """A parametrization as in PyTorch's tutorials, without a right_inverse."""

    def forward(self, X):
        return X.sin()


@pytest.mark.parametrize("init", [None, torch.full((3, 2), 0.4)])
def test_a_parametrization_without_an_inverse_acts_once(init) -> None:
    ours, torchs = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    torchs.load_state_dict(ours.state_dict())
    if init is not None:
        torchs.weight.data.copy_(init)
    torch.nn.utils.parametrize.register_parametrization(torchs, "weight", Sine())
    sp.constrain(ours, "weight", Sine(), init=init)
    assert torch.equal(ours.weight, torchs.weight)
    with pytest.raises(ValueError, match=r"init: expected.*right_inverse"):
        sp.constrain(torch.nn.Linear(2, 3), "weight", Sine(), init="paper")


def test_blocks_of_another_library_keep_what_they_train_and_what_they_are_set_to() -> None:
    layer = sp.constrain(torch.nn.Linear(3, 3), "weight", sp.BlockTriangular([(3, Scaled())]))
    weight = layer.parametrizations.weight
    block, before = weight[0].blocks[0], layer.weight.detach().clone()
    (layer.weight.sum() + layer.weight.sum()).backward()
    torch.testing.assert_close(block.gain.grad, 2 * before.sum() / 3)
    block.scale = 4.0
    torch.testing.assert_close(layer.weight, 2 * before)


def test_radii_that_are_edited_in_place_are_seen() -> None:
    lstm = sp.constrain(torch.nn.LSTM(2, 4), "weight_hh_l0", sp.SpectralRadiusNorm(torch.ones(4)))
    torch.testing.assert_close(radii(lstm.weight_hh_l0), torch.ones(4))
    lstm.parametrizations.weight_hh_l0[0].radius[0] = 0.5
    torch.testing.assert_close(radii(lstm.weight_hh_l0), torch.tensor([0.5, 1, 1, 1]))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("make", [sp.SpectralRadiusNorm, sp.SkewExponential, sp.ScaledCayley, sp.SchurForm])
def test_gradients_are_the_same_with_checkpoints(make, reentrant) -> None:
    lstm = sp.constrain(torch.nn.LSTM(3, 5), "weight_hh_l0", make())
    with torch.no_grad():
        next(lstm.parametrizations.weight_hh_l0.parameters()).add_(0.01)
    x, tensors = torch.randn(6, 2, 3, requires_grad=True), list(lstm.parameters())
    expected = torch.autograd.grad(lstm(x)[0].square().sum(), tensors)
    torch.utils.checkpoint.checkpoint(
        lambda x: lstm(x)[0], x, use_reentrant=reentrant
    ).square().sum().backward()
    torch.testing.assert_close([t.grad for t in tensors], list(expected))


def test_a_read_in_inference_mode_leaves_no_graph() -> None:
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", sp.SpectralRadiusNorm())
    layer.parametrizations.weight.original.data.mul_(1.1)
    with torch.inference_mode():
        W = layer.weight.clone()
    torch.testing.assert_close(copy.deepcopy(layer).weight, W)


def test_all_links_of_a_chain_are_evaluated_once(monkeypatch) -> None:
    chain = [sp.SignPattern(torch.ones(4, 4)), sp.ScaledCayley()]
    rnn = sp.constrain(torch.nn.RNN(2, 4), "weight_hh_l0", chain)
    calls, evaluate = [], sp.ScaledCayley.evaluate
    monkeypatch.setattr(sp.ScaledCayley, "evaluate", lambda *a: calls.append(1) or evaluate(*a))
    rnn.parametrizations.weight_hh_l0.original.data.mul_(1.1)
    rnn(torch.randn(3, 1, 2))
    assert len(calls) == 1


@pytest.mark.parametrize("make", [sp.SpectralRadiusNorm, sp.SpectralAbscissa])
def test_nan_cannot_be_assigned(make) -> None:
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", make())
    W = torch.full((4, 4), torch.nan)
    assert not layer.parametrizations.weight[0].in_manifold(W)
    with pytest.raises(sp.errors.NotFiniteError):
        layer.weight = W


@pytest.mark.parametrize("gates", [0, -1, 2.0, True])
def test_number_of_gates_out_of_range_is_named(gates) -> None:
    with refused("gates: expected"):
        sp.constrain(torch.nn.Linear(4, 4), "weight", sp.ScaledCayley(), gates=gates)


def test_gates_of_another_library() -> None:
    with refused("gates"):
        sp.constrain(torch.nn.Linear(4, 8), "weight", Scaled(), gates=2)


def test_a_failure_leaves_a_layer_that_had_another_constraint_as_it_was() -> None:
    rnn = sp.constrain(torch.nn.RNN(4, 4, 2), "weight_ih_l0", sp.ScaledCayley())
    rnn.weight_hh_l1.data[0, 0] = torch.nan
    before = {key: value.clone() for key, value in rnn.state_dict().items()}
    tensors = dict(rnn.named_parameters())
    with pytest.raises(sp.errors.NotFiniteError):
        sp.constrain(rnn, "weight_hh_l*", sp.SchurForm(radius=0.5))  # Of several originals.
    assert list(rnn.state_dict()) == list(before)
    torch.testing.assert_close(rnn.state_dict(), before, rtol=0, atol=0, equal_nan=True)
    assert all(p is tensors[name] for name, p in rnn.named_parameters())
    rnn.weight_hh_l1.data.zero_()
    sp.constrain(rnn, "weight_hh_l*", sp.SchurForm(radius=0.5))
    assert radii(rnn.weight_hh_l0[None]).item() <= 0.5 + 1e-5


def test_a_failure_puts_back_the_same_parameters_in_their_order() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 5))
    model[0].weight.requires_grad_(False)
    torch.nn.utils.parametrizations.orthogonal(model[1], "weight")
    before = dict(model.named_parameters())
    pointers = {name: p.data_ptr() for name, p in before.items()}
    values = {name: p.detach().clone() for name, p in before.items()}
    with pytest.raises(sp.errors.NotSquareError):
        sp.constrain(model, "*.weight", sp.SpectralRadiusNorm(), init=None)
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    for name, parameter in after.items():
        assert parameter is before[name], name
        assert parameter.data_ptr() == pointers[name], name
        assert torch.equal(parameter, values[name]), name
    assert not parametrize.is_parametrized(model[0])
    assert len(model[1].parametrizations.weight) == 1


@pytest.mark.parametrize("kwargs", [{}, {"radius": 0.9}, {"abscissa": 0.0}], ids=str)
def test_both_starts_of_schur_form_load_each_other(kwargs) -> None:
    layers = [
        sp.constrain(torch.nn.Linear(4, 4), "weight", sp.SchurForm(**kwargs), init=init)
        for init in (None, "paper")
    ]
    states = [layer.state_dict() for layer in layers]
    for layer, state in zip(layers, reversed(states), strict=True):
        layer.load_state_dict(state)


@pytest.mark.parametrize(
    ("diagonal", "mode", "is_kept"),
    [
        (math.nan, "equal", True),
        (math.nan, "at_most", True),
        (-1, "at_most", True),
        (-1, "equal", False),
        (1, "at_most", False),
        (0, "equal", False),
    ],
)
def test_a_shifted_diagonal_keeps_the_signs_before_it(diagonal, mode, is_kept) -> None:
    pattern = torch.ones(6, 6)
    pattern[:, 4:] = -1
    pattern.fill_diagonal_(diagonal)
    layer, chain = torch.nn.Linear(6, 6), [sp.SignPattern(pattern), sp.SpectralAbscissa(-0.5, mode=mode)]
    if not is_kept:
        with refused("SignPattern"):
            sp.constrain(layer, "weight", chain)
        # The same, one after the other.
        sp.constrain(layer, "weight", chain[0])
        with refused("SignPattern"):
            sp.constrain(layer, "weight", chain[1])
        return
    sp.constrain(layer, "weight", chain)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(20):
        (layer.weight - 3).square().sum().backward()
        optimizer.step()
    W = layer.weight.detach()
    known = ~pattern.isnan()
    assert (pattern[known] * W[known] >= 0).all()
    assert torch.linalg.eigvals(W).real.max() <= -0.5 + 1e-4


class Small(sp.SpectralNorm):
    def penalty(self, T):
        return T.square().sum()


def test_a_constraint_of_ones_own_may_have_a_penalty() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    sp.constrain(model, "*.weight", Small(100.0))
    expected = sum(layer.weight.detach().square().sum() for layer in model)
    total = sp.penalty(model)
    torch.testing.assert_close(total.detach(), expected)
    total.backward()
    assert all(original.grad.any() for name, original in model.named_parameters() if "original" in name)
    sp.rebase(model)  # A norm has no base: nothing changes.
    torch.testing.assert_close(sp.penalty(model).detach(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("entry", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "make",
    [
        sp.ScaledCayley,
        sp.Householder,
        sp.SkewExponential,
        sp.Givens,
        sp.SingularValues,
        sp.SpectralNorm,
        sp.SchurForm,
        sp.LyapunovForm,
        lambda: sp.SignPattern(torch.ones(3, 3)),
    ],
)
def test_a_weight_that_is_not_finite_is_refused_as_such(make, entry) -> None:
    W = torch.eye(3)
    W[0, 1] = entry
    with pytest.raises(sp.errors.NotFiniteError, match=r"expected.*got"):
        sp.constrain(sp.testing.Holder(W), "weight", make())
