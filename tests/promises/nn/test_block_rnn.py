"""BlockRNN: torch.nn.RNN's interface and results, and what goes beyond them."""

import copy
import warnings

import geotorch
import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import spectral_param as sp
from tests.promises.cases import orthogonality_defect, radii
from tests.training import average_inputs

BLOCKS = [(4, sp.ScaledCayley()), (3, sp.SpectralRadiusNorm())]
N = 7


def twin_of(rnn: torch.nn.RNN, **kwargs) -> sp.nn.BlockRNN:
    """A BlockRNN without constraints that has torch.nn.RNN's weights."""
    twin = sp.nn.BlockRNN(
        rnn.input_size,
        [(rnn.hidden_size, None)],
        rnn.num_layers,
        nonlinearity=rnn.nonlinearity,
        bidirectional=rnn.bidirectional,
        batch_first=rnn.batch_first,
        dtype=rnn.weight_hh_l0.dtype,
        **kwargs,
    )
    names = [name.removeprefix("weight_ih_") for name in dict(rnn.named_parameters()) if "weight_ih" in name]
    for cell, name in zip(twin.cells, names, strict=True):
        cell.weight_ih.data = getattr(rnn, f"weight_ih_{name}").data.clone()
        cell.weight_hh = getattr(rnn, f"weight_hh_{name}").data
        cell.bias.data = (getattr(rnn, f"bias_ih_{name}") + getattr(rnn, f"bias_hh_{name}")).data
    return twin


def gradients(output, model):
    return torch.autograd.grad(output.square().sum(), list(model.parameters()))


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("initial", [False, True])
def test_computes_what_torch_nn_rnn_computes(
    num_layers, bidirectional, batch_first, nonlinearity, initial
) -> None:
    rnn = torch.nn.RNN(
        3,
        N,
        num_layers,
        nonlinearity=nonlinearity,
        bidirectional=bidirectional,
        batch_first=batch_first,
        dtype=torch.float64,
    )
    twin = twin_of(rnn)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    batch = 5 if batch_first else 2
    h_0 = torch.randn(num_layers * (1 + bidirectional), batch, N, dtype=torch.float64)
    for a, b in zip(twin(x, h_0 if initial else None), rnn(x, h_0 if initial else None), strict=True):
        torch.testing.assert_close(a, b)
    unbatched = x[:, 0]
    h_0 = h_0[:, 0] if initial else None
    for a, b in zip(twin(unbatched, h_0), rnn(unbatched, h_0), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences_as_torch_nn_rnn(bidirectional, enforce_sorted) -> None:
    rnn = torch.nn.RNN(3, N, 2, bidirectional=bidirectional, dtype=torch.float64)
    twin = twin_of(rnn)
    lengths = [6, 4, 4, 1] if enforce_sorted else [1, 6, 4, 4]
    x = torch.randn(6, 4, 3, dtype=torch.float64, requires_grad=True)
    h_0 = torch.randn(2 * (1 + bidirectional), 4, N, dtype=torch.float64, requires_grad=True)
    results = []
    for model in (twin, rnn):
        packed = pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted)
        output, h_n = model(packed, h_0)
        padded, output_lengths = pad_packed_sequence(output)
        assert output_lengths.tolist() == lengths
        loss = padded.square().sum() + h_n.sum()
        results.append([padded, h_n, *torch.autograd.grad(loss, (x, h_0))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_block_triangular_on_torch_nn_rnn_is_the_same_network() -> None:
    rnn = torch.nn.RNN(3, N, dtype=torch.float64)
    sp.constrain(rnn, "weight_hh_l0", sp.BlockTriangular(BLOCKS, coupling=True))
    block_rnn = sp.nn.BlockRNN(3, BLOCKS, coupling=True, nonlinearity="tanh", init=None, dtype=torch.float64)
    (cell,) = block_rnn.cells
    cell.weight_hh = rnn.weight_hh_l0.detach()
    cell.weight_ih.data = rnn.weight_ih_l0.data.clone()
    cell.bias.data = (rnn.bias_ih_l0 + rnn.bias_hh_l0).data
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    for a, b in zip(block_rnn(x), rnn(x), strict=True):
        torch.testing.assert_close(a, b)
    # And they train alike, constraint included.
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (rnn, block_rnn)]
    rnn.bias_hh_l0.requires_grad_(False)
    for _ in range(5):
        for model, optimizer in zip((rnn, block_rnn), optimizers, strict=True):
            optimizer.zero_grad()
            model(x)[0].square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(cell.weight_hh, rnn.weight_hh_l0, atol=1e-9, rtol=1e-9)


def test_long_and_short_state_of_the_paper() -> None:
    """Eq. (3), written out."""
    rnn = sp.nn.ENRNN(2, 4, 3)
    (cell,) = rnn.cells
    torch.nn.init.normal_(cell.bias, std=0.1)
    W, U, b = cell.weight_hh, cell.weight_ih, cell.bias
    x = torch.randn(6, 5, 2)
    long, short = torch.zeros(5, 4), torch.zeros(5, 3)
    for t in range(6):
        new_long = x[t] @ U[:4].mT + long @ W[:4, :4].mT + short @ W[:4, 4:].mT
        new_short = x[t] @ U[4:].mT + short @ W[4:, 4:].mT
        long = sp.functional.modrelu(new_long, b[:4])
        short = sp.functional.modrelu(new_short, b[4:])
    expected_long, expected_short = rnn(x)[1][0].split(rnn.block_sizes, dim=-1)
    torch.testing.assert_close(long, expected_long)
    torch.testing.assert_close(short, expected_short)


def test_cell_is_one_step_of_the_layer() -> None:
    rnn = sp.nn.ENRNN(2, 4, 3)
    (cell,) = rnn.cells
    x = torch.randn(3, 5, 2)
    h = None
    for x_t in x:
        h = cell(x_t, h)
    torch.testing.assert_close(h, rnn(x)[1][0])
    torch.testing.assert_close(cell(x[0, 0]), cell(x[0])[0])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # Recurrent network and linear output, as the paper counts: "≈ 15k".
        (lambda: (sp.nn.ENRNN(2, 96, 64), 1), 15_441),
        (lambda: (sp.nn.ScoRNN(2, 170), 1), 170 * 169 // 2 + 2 * 170 + 170 + 171),
    ],
    ids=["ENRNN 96/64", "scoRNN 170"],
)
def test_parameters_of_the_adding_problem(make, expected) -> None:
    rnn, outputs = make()
    model = torch.nn.ModuleList([rnn, torch.nn.Linear(rnn.hidden_size, outputs)])
    assert sp.num_free_parameters(model) == expected


@pytest.mark.parametrize(("long", "short"), [(0, 5), (5, 0)])
def test_either_memory_can_be_left_out(long, short) -> None:
    rnn = sp.nn.ENRNN(2, long, short)
    assert rnn.block_sizes == (5,)
    assert rnn(torch.randn(3, 1, 2))[0].shape == (3, 1, 5)


def test_identity_input_map_adds_the_input_to_the_state() -> None:
    rnn = sp.nn.ENRNN(7, 4, 3, input_map="identity", nonlinearity="relu")
    assert rnn.cells[0].weight_ih is None
    x = torch.randn(1, 2, 7)
    torch.testing.assert_close(rnn(x)[0], torch.relu(x))


def test_a_module_as_activation_is_trained_with_the_network() -> None:
    rnn = sp.nn.BlockRNN(2, BLOCKS, nonlinearity=torch.nn.PReLU())
    rnn(torch.randn(4, 1, 2))[0].sum().backward()
    assert rnn.cells[0].nonlinearity.weight.grad is not None


def test_complex_network_has_complex_states_and_a_unitary_weight() -> None:
    rnn = sp.nn.ScoRNN(2, 5, negative_ones=None, dtype=torch.complex64)
    output, h_n = rnn(torch.randn(4, 3, 2))
    assert output.dtype == h_n.dtype == torch.complex64
    output.abs().sum().backward()
    assert orthogonality_defect(rnn.cells[0].weight_hh).max() < 1e-5


def test_layers_have_parametrizations_of_their_own() -> None:
    rnn = sp.nn.BlockRNN(2, BLOCKS, num_layers=2, bidirectional=True)
    weights = [cell.weight_hh for cell in rnn.cells]
    assert len(weights) == 4
    assert not torch.equal(weights[0], weights[1])


def test_dropout_between_layers_in_training_only() -> None:
    rnn = sp.nn.BlockRNN(2, BLOCKS, num_layers=2, dropout=0.5)
    x = torch.randn(4, 3, 2)
    assert not torch.equal(rnn(x)[0], rnn(x)[0])
    rnn.eval()
    assert torch.equal(rnn(x)[0], rnn(x)[0])


def test_state_dict_and_deepcopy() -> None:
    rnn, other = sp.nn.ENRNN(2, 4, 3), sp.nn.ENRNN(2, 4, 3)
    x = torch.randn(4, 3, 2)
    rnn(x)
    other.load_state_dict(rnn.state_dict())
    assert torch.equal(other(x)[0], rnn(x)[0])
    assert torch.equal(copy.deepcopy(rnn)(x)[0], rnn(x)[0])


@pytest.mark.nightly
def test_training_keeps_every_constraint_and_lowers_the_loss() -> None:
    rnn = sp.nn.ENRNN(2, 12, 8, mode="equal")
    head = torch.nn.Linear(20, 1)
    groups = sp.param_groups(torch.nn.ModuleList([rnn, head]), lr=1e-2, constrained_lr=1e-3)
    losses = average_inputs(rnn, head, groups)
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    W = rnn.cells[0].weight_hh.detach()
    assert orthogonality_defect(W[:12, :12]).max() < 1e-5
    assert radii(W[12:, 12:]).item() == pytest.approx(1, abs=1e-5)


def test_blocks_of_another_library_and_free_blocks() -> None:
    blocks = [(4, geotorch.SO(torch.Size((4, 4)))), (3, None)]
    rnn = sp.nn.BlockRNN(2, blocks, coupling=True)
    W = rnn.cells[0].weight_hh.detach()
    assert orthogonality_defect(W[:4, :4]).max() < 1e-5
    assert W[4:, 4:].abs().max() > 0
    rnn(torch.randn(5, 2, 2))[0].sum().backward()


def test_runs_after_removal_of_the_parametrization() -> None:
    rnn = sp.nn.ENRNN(2, 4, 3)
    x = torch.randn(5, 3, 2)
    expected = rnn(x)[0]
    parametrize.remove_parametrizations(rnn.cells[0], "weight_hh")
    assert torch.equal(rnn(x)[0], expected)
    exported = torch.export.export(rnn, (x,)).module()
    torch.testing.assert_close(exported(x)[0], expected)


def test_states_carried_over_with_create_graph() -> None:
    """The first gradient is the same, whether a second one is prepared or not."""
    rnn = sp.nn.ENRNN(2, 4, 3, dtype=torch.float64)
    torch.nn.init.normal_(rnn.cells[0].bias, std=0.1)
    x = torch.randn(6, 3, 2, dtype=torch.float64)

    def gradients(create_graph):
        _, h = rnn(x[:3])
        loss = rnn(x[3:], h)[0].square().sum()
        return torch.autograd.grad(loss, list(rnn.parameters()), create_graph=create_graph)

    for plain, differentiable in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(plain, differentiable)


def test_vectorised_jacobian_and_forward_mode() -> None:
    rnn = sp.nn.ENRNN(2, 4, 3, dtype=torch.float64)
    x = torch.randn(3, 1, 2, dtype=torch.float64)

    def function(x):
        return rnn(x)[0]

    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(function, x, vectorize=True), jacobian(function, x))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, x))).tangent
    torch.testing.assert_close(tangent, torch.func.jvp(function, (x,), (x,))[1])


def test_empty_batch_as_torch_nn_rnn() -> None:
    output, h_n = sp.nn.ENRNN(2, 4, 3)(torch.randn(5, 0, 2))
    assert output.shape == (5, 0, 7)
    assert h_n.shape == (1, 0, 7)


@pytest.mark.parametrize("make", [lambda **k: sp.nn.ScoRNN(2, 5, **k), lambda **k: sp.nn.ENRNN(2, 5, 3, **k)])
def test_complex_network_with_defaults_and_conversion(make) -> None:
    rnn = make(dtype=torch.complex64)
    x = torch.randn(4, 3, 2)
    rnn(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        rnn.to(torch.complex128)
    assert rnn(x.double())[0].dtype == torch.complex128
    assert orthogonality_defect(rnn.cells[0].weight_hh[:5, :5]).max() < 1e-6


def test_a_module_as_activation_is_copied_for_each_layer() -> None:
    rnn = sp.nn.BlockRNN(2, BLOCKS, 2, nonlinearity=torch.nn.PReLU())
    assert rnn.cells[0].nonlinearity is not rnn.cells[1].nonlinearity


@pytest.mark.parametrize("bidirectional", [False, True])
def test_real_output_of_a_complex_network(bidirectional) -> None:
    kwargs = {"num_layers": 2, "bidirectional": bidirectional, "dtype": torch.complex64}
    x = torch.randn(5, 3, 2)
    torch.manual_seed(0)
    states, h_n = sp.nn.ScoRNN(2, 4, **kwargs)(x)
    torch.manual_seed(0)
    rnn = sp.nn.ScoRNN(2, 4, real_output=True, **kwargs)
    output, h_n_real = rnn(x)
    assert output.shape[-1] == rnn.output_size == 2 * states.shape[-1]
    torch.testing.assert_close(torch.complex(*output.chunk(2, dim=-1)), states)
    torch.testing.assert_close(h_n_real, h_n)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_checkpoints_and_last_states_alone(dtype, bidirectional, packed) -> None:
    def network(**kwargs):
        torch.manual_seed(0)
        kwargs |= {"bidirectional": bidirectional, "dtype": dtype, "batch_first": True}
        rnn = sp.nn.ENRNN(2, 4, 3, 2, **kwargs)
        for cell in rnn.cells:
            torch.nn.init.normal_(cell.bias, std=0.1)
        return rnn

    x = torch.randn(3, 6, 2, dtype=torch.float64)
    if packed:
        x = pack_padded_sequence(x, [2, 6, 5], batch_first=True, enforce_sorted=False)
    rnn = network()
    output, h_n = rnn(x)
    data = output.data if packed else output
    loss = data.abs().sum() + h_n.abs().sum()
    expected = torch.autograd.grad(loss, list(rnn.parameters()), retain_graph=True)
    expected_last = torch.autograd.grad(h_n.abs().sum(), list(rnn.parameters()))

    rnn = network(checkpoint_every=2)
    output, found = rnn(x)
    torch.testing.assert_close(output.data if packed else output, data)
    torch.testing.assert_close(found, h_n)
    loss = (output.data if packed else output).abs().sum() + found.abs().sum()
    for a, b in zip(torch.autograd.grad(loss, list(rnn.parameters())), expected, strict=True):
        torch.testing.assert_close(a, b)

    rnn = network(checkpoint_every="auto", return_output=False, real_output=dtype.is_complex)
    output, found = rnn(x)
    assert output is None
    torch.testing.assert_close(found, h_n)
    for a, b in zip(
        torch.autograd.grad(found.abs().sum(), list(rnn.parameters())), expected_last, strict=True
    ):
        torch.testing.assert_close(a, b)


def test_unbatched_last_states_alone() -> None:
    rnn = sp.nn.ENRNN(2, 4, 3, return_output=False)
    output, h_n = rnn(torch.randn(5, 2))
    assert output is None
    assert h_n.shape == (1, 7)
    assert "return_output=False" in repr(rnn)


def test_complex_input_for_a_real_network() -> None:
    with pytest.raises(ValueError, match=r"input: expected a real tensor for a network of torch\.float32"):
        sp.nn.ENRNN(2, 4, 3)(torch.randn(4, 3, 2, dtype=torch.complex64))


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (torch.randn(2), "2 .unbatched. or 3 dimensions"),
        (torch.randn(4, 3, 5), "2 features"),
        (torch.randn(0, 3, 2), "at least one time step"),
        ([[1.0, 2.0]], "input: expected a tensor, got a value of type list. Convert numbers"),
    ],
)
def test_sequences_of_wrong_shape_are_refused(x, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.nn.ENRNN(2, 4, 3)(x)


@pytest.mark.parametrize("h_0", [torch.zeros(3, 7), torch.zeros(1, 2, 7), torch.zeros(1, 3, 6)])
def test_bad_initial_state(h_0) -> None:
    with pytest.raises(ValueError, match=r"hx: expected shape .* \(1, 3, 7\)"):
        sp.nn.ENRNN(2, 4, 3)(torch.randn(5, 3, 2), h_0)


def test_bad_initial_state_for_unbatched_input() -> None:
    with pytest.raises(
        ValueError, match=r"shape \(layers \* directions, hidden_size\) = \(1, 7\), got \(1, 1, 7\)"
    ):
        sp.nn.ENRNN(2, 4, 3)(torch.randn(5, 2), torch.zeros(1, 1, 7))


@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize(
    "h_0", [torch.zeros(7), torch.zeros(3, 7), torch.zeros(1, 4, 7), torch.zeros(1, 2, 7)]
)
def test_bad_initial_state_for_packed_input(h_0, enforce_sorted) -> None:
    x = pack_padded_sequence(torch.randn(5, 3, 2), [5, 4, 2], enforce_sorted=enforce_sorted)
    with pytest.raises(ValueError, match=r"hx: expected shape .* \(1, 3, 7\)"):
        sp.nn.ENRNN(2, 4, 3)(x, h_0)


@pytest.mark.parametrize("make", [lambda: sp.nn.ScoRNN(2, 4), lambda: sp.nn.GORU(2, 4)])
def test_complex_states_and_cells_input_for_a_real_network(make) -> None:
    rnn, x, h0 = make(), torch.randn(5, 3, 2), torch.zeros(1, 3, 4, dtype=torch.complex64)
    with pytest.raises(ValueError, match="hx: expected a real tensor"):
        rnn(x, h0)
    with pytest.raises(ValueError, match="hx: expected a real tensor"):
        rnn.cells[0](x[0], h0[0])
    with pytest.raises(ValueError, match="input: expected a real tensor"):
        rnn.cells[0](x[0].to(torch.complex64))


def test_dropout_of_complex_states_drops_whole_entries() -> None:
    rnn = sp.nn.ScuRNN(2, 64, num_layers=2, dropout=0.25, nonlinearity="identity")
    rnn.cells[1].weight_ih.data = torch.eye(64, dtype=torch.complex64)
    rnn.cells[1].bias.data.zero_()
    x = torch.randn(1, 40, 2)
    kept = torch.complex(*rnn.eval()(x)[0].chunk(2, dim=-1))  # the second layer passes its input on
    dropped = torch.complex(*rnn.train()(x)[0].chunk(2, dim=-1))
    gone = dropped == 0
    torch.testing.assert_close(dropped[~gone], kept[~gone] / 0.75)
    assert gone.float().mean().item() == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"num_layers": 0}, "num_layers: expected an integer >= 1"),
        ({"dropout": 1.5}, "dropout: expected a probability"),
        ({"dropout": None}, "dropout: expected a probability from 0 to 1, got None"),
        ({"coupling": None}, "coupling: expected a bool or pairs .* got None"),
        ({"nonlinearity": "gelu"}, "nonlinearity: expected one of"),
        ({"coupling": [(1, 0)]}, "coupling: expected pairs"),
        ({"coupling": [(0, 5)]}, "coupling: expected pairs"),
        ({"input_map": "identity"}, "input_size to be the hidden size 7, got 2"),
        ({"input_map": "random"}, "input_map: expected 'linear' or 'identity'"),
        ({"real_output": True}, "real_output: expected a complex dtype"),
        ({"checkpoint_every": 0}, "checkpoint_every: expected a positive number of steps"),
        ({"init": "henaff"}, "init: expected None, 'paper', a tensor or a function"),
    ],
)
def test_arguments_out_of_range_are_named(kwargs, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.nn.BlockRNN(2, BLOCKS, **kwargs)


@pytest.mark.parametrize("size", [-3, 2.5, "4", None, True])
@pytest.mark.parametrize("network", [sp.nn.ScoRNN, sp.nn.ScuRNN, sp.nn.URNN, sp.nn.NNRNN, sp.nn.GORU])
def test_sizes_that_are_none(network, size) -> None:
    """Also in place of long_size and short_size, where 0 is for no block."""
    for arguments in ((2, size), (size, 4), (2, 4, size)):
        with pytest.raises(ValueError, match=f"expected an integer >= 1, got {size!r}"):
            network(*arguments)
    for arguments in ((2, size, 4), (2, 4, size)):
        with pytest.raises(ValueError, match=f"expected an integer >= 1, got {size!r}"):
            sp.nn.ENRNN(*arguments)


def test_sizes_may_be_integers_of_numpy() -> None:
    rnn = sp.nn.ENRNN(*np.array([2, 6, 4, 2]))
    assert repr(rnn) == repr(sp.nn.ENRNN(2, 6, 4, 2))
    assert rnn.block_sizes == (6, 4)


def test_no_memory_at_all() -> None:
    with pytest.raises(ValueError, match="at least one that is not 0"):
        sp.nn.ENRNN(2, 0, 0)


@pytest.mark.parametrize("nonlinearity", ["identity", lambda z: z])
def test_autocast_leaves_cell_and_layer_alone(nonlinearity) -> None:
    rnn = sp.nn.ScoRNN(2, 16, nonlinearity=nonlinearity)
    (cell,) = rnn.cells
    x, h0 = torch.randn(1, 3, 2), torch.randn(1, 3, 16)
    expected = rnn(x, h0)[0][0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for actual in (rnn(x, h0)[0][0], cell(x[0], h0[0]), cell(input=x[0], hx=h0[0])):
            torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(cell(x[0]), rnn(x)[0][0])


def test_layers_follow_parametrizations_of_all_weights() -> None:
    rnn = sp.nn.ScoRNN(2, 8)
    (cell,) = rnn.cells
    torch.nn.utils.parametrizations.weight_norm(cell, "weight_ih")
    torch.nn.utils.parametrizations.spectral_norm(cell, "weight_hh")
    parametrize.register_parametrization(cell, "bias", torch.nn.Tanh())
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter)
    x, h0 = torch.randn(1, 3, 2), torch.randn(1, 3, 8)
    rnn.eval()  # spectral_norm moves on at each read in training
    torch.testing.assert_close(rnn(x, h0)[0][0], cell(x[0], h0[0]))
    rnn(x, h0)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in cell.parameters())
