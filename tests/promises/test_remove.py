"""The way back: plain weights, and bounds that a trained network has already."""

import copy
import io

import geotorch
import numpy as np
import pytest
import scipy.sparse
import torch
from torch.nn.utils import parametrizations, parametrize

import spectral_param as sp
from tests.messages import refused


def model():
    return torch.nn.ModuleDict(
        {
            "encoder": torch.nn.Linear(16, 5),
            "rnn": torch.nn.LSTM(5, 8, num_layers=2),
            "conv": torch.nn.Conv1d(4, 6, 1),
        }
    )


def constrained():
    module = model()
    sp.constrain(module, "encoder.weight", sp.Householder())
    sp.constrain(module, "rnn.weight_hh_l*", [sp.SkewExponential(), sp.SpectralRadiusNorm(0.9)])
    return sp.constrain(module, "conv.weight", sp.ScaledCayley())


NAMES = [("encoder", "weight"), ("rnn", "weight_hh_l0"), ("rnn", "weight_hh_l1"), ("conv", "weight")]


def test_remove_leaves_plain_weights_of_a_whole_model() -> None:
    module = constrained()
    before = {
        (owner, name): getattr(module.get_submodule(owner), name).detach().clone() for owner, name in NAMES
    }
    x = torch.randn(3, 2, 5)
    expected = module["rnn"](x)[0]
    assert sp.remove(module) is module
    for (owner, name), W in before.items():
        plain = module.get_submodule(owner)._parameters[name]
        assert torch.equal(plain, W)
        assert plain.is_contiguous()
        assert plain.requires_grad
        assert plain.is_leaf
    assert set(module.state_dict()) == set(model().state_dict())
    torch.testing.assert_close(module["rnn"](x)[0], expected, atol=0, rtol=0)
    # The layer reads the parameter that an optimizer changes.
    torch.optim.SGD(module.parameters(), 1.0).zero_grad()
    module["rnn"](x)[0].square().sum().backward()
    assert module["rnn"].weight_hh_l0.grad.abs().max() > 0
    with torch.no_grad():
        module["rnn"].weight_hh_l0.zero_()
    assert not torch.equal(module["rnn"](x)[0], expected)


def test_a_pattern_leaves_the_others() -> None:
    module = sp.remove(constrained(), "rnn.*_l0")
    assert not parametrize.is_parametrized(module["rnn"], "weight_hh_l0")
    assert parametrize.is_parametrized(module["rnn"], "weight_hh_l1")
    assert parametrize.is_parametrized(module["encoder"], "weight")
    with refused("name"):
        sp.remove(module, "decoder.weight")


def test_what_it_left_alone_is_said() -> None:
    module = constrained()
    parametrizations.weight_norm(module["encoder"], "bias", dim=0)
    with pytest.warns(UserWarning, match=r"remove.*bias.*_WeightNorm"):
        sp.remove(module)
    assert parametrize.is_parametrized(module["encoder"], "bias")
    assert not parametrize.is_parametrized(module["encoder"], "weight")


def test_a_chain_with_another_library() -> None:
    layer = torch.nn.Linear(6, 6)
    sp.constrain(layer, "weight", [geotorch.SO((6, 6)), sp.SpectralRadiusNorm(0.5)])
    W = layer.weight.detach().clone()
    assert torch.equal(sp.remove(layer).weight, W)
    assert type(layer) is torch.nn.Linear


def test_a_constraint_after_another_library() -> None:
    layer = torch.nn.Linear(6, 6)
    parametrizations.orthogonal(layer)
    with pytest.warns(UserWarning, match="_Orthogonal"):
        sp.constrain(layer, "weight", sp.SpectralRadiusNorm(0.5))
    W = layer.weight.detach().clone()
    assert torch.equal(sp.remove(layer).weight, W)
    assert type(layer) is torch.nn.Linear


@pytest.mark.parametrize("make", [lambda: sp.nn.ENRNN(2, 8, 4), lambda: sp.nn.ScoRNN(2, 8)])
def test_a_network_of_this_library(make) -> None:
    network, x = make(), torch.randn(5, 3, 2)
    expected = network(x)[0]
    sp.remove(network)
    assert not any(parametrize.is_parametrized(part) for part in network.modules())
    torch.testing.assert_close(network(x)[0], expected)


def test_a_removed_model_is_saved_scripted_and_exported() -> None:
    layer = sp.remove(sp.constrain(torch.nn.Linear(16, 5), "weight", sp.ScaledCayley()))
    x = torch.randn(2, 16)
    expected = layer(x)
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    plain = torch.nn.Linear(16, 5)
    plain.load_state_dict(torch.load(buffer))
    torch.testing.assert_close(plain(x), expected)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), expected)


# A bound that the weight has ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: sp.SpectralRadiusNorm("present"), lambda: sp.SpectralAbscissa("present")]
)
@pytest.mark.parametrize("mode", ["first", "after"])
def test_the_present_bound_moves_nothing(make, mode) -> None:
    lstm = torch.nn.LSTM(3, 8)
    lstm.weight_hh_l0.data[::8, 1].abs_()
    W = lstm.weight_hh_l0.detach().clone()
    pattern = torch.full((8, 8), torch.nan)
    pattern[0, 1] = 1
    chain = [make()] if mode == "first" else [sp.SignPattern(pattern), make()]
    sp.constrain(lstm, "weight_hh_l0", chain)
    # Computed twice, by an eigenvalue decomposition with an error of eps times the condition.
    torch.testing.assert_close(lstm.weight_hh_l0, W, atol=1e-5, rtol=1e-5)
    constraint = lstm.parametrizations.weight_hh_l0[-1]
    bound = constraint.radius if isinstance(constraint, sp.SpectralRadiusNorm) else constraint.abscissa
    assert bound.shape == (4,)
    with torch.no_grad():
        for t in lstm.parametrizations.weight_hh_l0.parameters():
            t.mul_(3).add_(0.1 * torch.randn_like(t))
    eigenvalues = torch.linalg.eigvals(lstm.weight_hh_l0.detach().unflatten(0, (4, 8)))
    is_radius = isinstance(constraint, sp.SpectralRadiusNorm)
    found = eigenvalues.abs().amax(-1) if is_radius else eigenvalues.real.amax(-1)
    torch.testing.assert_close(found, bound.float(), atol=1e-4, rtol=1e-4)
    # The bound is in the checkpoint: a fresh network, with other radii, takes it.
    fresh = sp.constrain(torch.nn.LSTM(3, 8), "weight_hh_l0", copy.deepcopy(chain))
    fresh.load_state_dict(lstm.state_dict())
    torch.testing.assert_close(fresh.weight_hh_l0, lstm.weight_hh_l0, atol=0, rtol=0)


def test_a_present_bound_that_is_none() -> None:
    layer = torch.nn.Linear(3, 3)
    torch.nn.init.zeros_(layer.weight)
    with refused("radius", "'present'"):
        sp.constrain(layer, "weight", sp.SpectralRadiusNorm("present"))
    with refused("radius: expected.*got 'now'"):
        sp.SpectralRadiusNorm("now")
    with refused("abscissa: expected.*got 'now'"):
        sp.SpectralAbscissa("now")


def test_how_far_a_constraint_would_move_a_weight() -> None:
    module = model()
    before = copy.deepcopy(module.state_dict())
    moved = sp.analysis.displacement(module, "*weight_hh_l*", sp.SpectralRadiusNorm("present"))
    assert set(moved) == {"rnn.weight_hh_l0", "rnn.weight_hh_l1"}
    assert max(moved.values()) < 1e-5
    far = sp.analysis.displacement(module, "encoder.weight", sp.ScaledCayley())["encoder.weight"]
    W = before["encoder.weight"]
    U, _, Vh = torch.linalg.svd(W, full_matrices=False)
    assert far == pytest.approx(float((U @ Vh - W).norm() / W.norm()), rel=1e-4)
    assert not any(parametrize.is_parametrized(part) for part in module.modules())
    assert all(torch.equal(before[name], t) for name, t in module.state_dict().items())


# Arrays ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        sp.functional.spectral_radius,
        sp.functional.spectral_abscissa,
        sp.functional.dominant_eigen,
        sp.functional.cayley_inverse,
        sp.functional.exponential,
        sp.functional.householder,
        sp.analysis.eigenvalues,
        sp.analysis.singular_values,
        sp.analysis.departure_from_normality,
        sp.analysis.lower_schur,
        sp.analysis.orthogonality_error,
        sp.analysis.kreiss_constant,
        lambda W: sp.analysis.transient_growth(W, 5),
        lambda W: sp.analysis.gradient_norm_bounds(W, 5),
        lambda W: sp.analysis.fisher_memory(0.5 * W, W[:, 0], 5),
    ],
)
def test_numpy_arrays_are_tensors_without_a_graph(function) -> None:
    W = np.random.default_rng(0).standard_normal((5, 5)) / 4
    found, expected = function(W[::-1]), function(torch.tensor(W[::-1].copy()))
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b)


@pytest.mark.parametrize("function", [sp.functional.spectral_radius, sp.analysis.eigenvalues])
def test_sparse_weights_are_refused_with_the_remedy(function) -> None:
    with refused(rf"{function.__name__}: expected.*to_dense\(\)", error=TypeError):
        function(torch.eye(3).to_sparse())
    for sparse in (scipy.sparse.eye_array(3), scipy.sparse.csr_matrix(np.eye(3))):
        with refused(r"toarray\(\)", error=TypeError):
            function(sparse)


@pytest.mark.parametrize(
    "function",
    [
        sp.functional.spectral_radius,
        sp.functional.householder,
        sp.analysis.orthogonality_error,
        sp.analysis.singular_values,
        sp.init.henaff_,
    ],
)
@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (torch.nn.Linear(2, 2), r".*Linear.*layer\.weight"),
        ([[1.0, 0.0], [0.0, 1.0]], r".*list.*torch\.as_tensor"),
        ([torch.eye(2)], ".*list.*tensors"),
        (None, "None"),
    ],
)
def test_what_is_no_tensor_is_refused_with_the_remedy(function, value, remedy) -> None:
    with refused(rf"{function.__name__}.*: expected.*got {remedy}"):
        function(value)


def test_arguments_too_few_and_too_many_are_counted_by_python() -> None:
    for arguments in ((), (torch.eye(2), 1, 2)):
        with pytest.raises(TypeError, match="argument"):
            sp.analysis.eigenvalues(*arguments)


def test_arrays_of_numpy_are_drawn() -> None:
    values = np.array([0.5 + 0.1j, 0.5 - 0.1j])
    assert sp.analysis.plot_eigenvalues(values).collections
