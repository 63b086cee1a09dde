"""Verbs, optimizer groups and parameter counts."""

import pytest
import torch
from torch.nn.utils import parametrize

import spectral_param as sp


def test_verbs_return_the_module() -> None:
    for make in (sp.SpectralRadiusNorm, sp.ScaledCayley):
        layer = torch.nn.Linear(4, 4)
        assert sp.constrain(layer, "weight", make()) is layer
        assert parametrize.is_parametrized(layer, "weight")


def test_init_from_a_tensor_and_from_a_function() -> None:
    W = torch.linalg.qr(torch.randn(4, 4)).Q
    torch.testing.assert_close(sp.constrain(torch.nn.Linear(4, 4), "weight", sp.ScaledCayley(), init=W).weight, W)
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", sp.ScaledCayley(), init=torch.nn.init.eye_)
    torch.testing.assert_close(layer.weight, torch.eye(4))


def test_init_outside_the_set_is_projected() -> None:
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", sp.SpectralRadiusNorm(), init=5 * torch.eye(4))
    torch.testing.assert_close(layer.weight, torch.eye(4))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"tensor_name": "weights"}, "got 'weights'. It has weight, bias"),
        ({"init": "papers"}, "init: expected None, 'paper'"),
        ({"init": torch.eye(3)}, r"shape \(4, 4\), got \(3, 3\)"),
    ],
)
def test_bad_arguments(arguments, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.constrain(torch.nn.Linear(4, 4), "weight", sp.ScaledCayley(**arguments))


@pytest.mark.parametrize(
    ("module", "tensor_name", "match"),
    [
        (torch.nn.Conv2d(4, 4, 3), "weight", "Conv2d: expected a module with a weight matrix"),
        (torch.nn.ConvTranspose1d(4, 4, 1), "weight", "ConvTranspose1d: expected a module with"),
        (torch.nn.LSTM(3, 8, proj_size=4), "weight_hh_l0", "recurrent weights of 8 columns, got 4"),
    ],
)
def test_weights_that_only_look_like_square_blocks(module, tensor_name, match) -> None:
    before = getattr(module, tensor_name).detach().clone()
    for make in (sp.SpectralRadiusNorm, sp.ScaledCayley):
        with pytest.raises(ValueError, match=match):
            sp.constrain(module, tensor_name, make())
    assert torch.equal(getattr(module, tensor_name), before)


def test_kernels_of_one_point_are_not_gates() -> None:
    layer = torch.nn.Conv1d(3, 4, 1)
    with pytest.raises(sp.errors.NotSquareError, match="as a convolution of kernel size 1 has"):
        parametrize.register_parametrization(layer, "weight", sp.SpectralRadiusNorm())
    assert not parametrize.is_parametrized(layer)


def test_constrained_twice() -> None:
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", sp.ScaledCayley())
    with pytest.raises(ValueError, match="'weight' has one"):
        sp.constrain(layer, "weight", sp.SpectralRadiusNorm())


def test_a_failed_verb_leaves_the_weight_alone() -> None:
    layer = torch.nn.Linear(4, 4)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match="at most n = 4"):
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


def test_param_groups_of_one_constraint() -> None:
    rnn = sp.nn.ENRNN(2, 4, 3)
    _, slow = sp.param_groups(rnn, 1e-3, 1e-4, constrained=sp.ScaledCayley)
    assert [tuple(p.shape) for p in slow["params"]] == [(4, 4)]


def test_param_groups_find_the_reflections_of_singular_values() -> None:
    rnn = sp.nn.SpectralRNN(2, 6)
    rest, slow = sp.param_groups(rnn, lr=1e-3, constrained_lr=1e-4, constrained=sp.Householder)
    assert [tuple(p.shape) for p in slow["params"]] == [(6, 6), (6, 6)]
    assert len(rest["params"]) + 2 == len(list(rnn.parameters()))


def test_param_groups_without_constraints() -> None:
    assert len(sp.param_groups(torch.nn.Linear(2, 2), 1e-3, 1e-4)) == 1


def test_param_groups_of_a_constraint_that_is_chained_second() -> None:
    layer = torch.nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", torch.nn.Identity())
    parametrize.register_parametrization(layer, "weight", sp.SpectralRadiusNorm())
    assert len(sp.param_groups(layer, 1e-3, 1e-4)) == 2


def test_num_free_parameters_of_partly_frozen_blocks() -> None:
    blocks = [(3, sp.ScaledCayley()), (2, None)]
    layer = sp.constrain(torch.nn.Linear(5, 5, bias=False), "weight", sp.BlockTriangular(blocks, coupling=True))
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
    parametrize.register_parametrization(layer, "weight", make())
    assert sp.num_free_parameters(layer) == all_of_them
    for original, expected in zip(layer.parameters(), left, strict=True):
        original.requires_grad_(False)
        assert sp.num_free_parameters(layer) == expected
        original.requires_grad_(True)


def test_num_free_parameters() -> None:
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
