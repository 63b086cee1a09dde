"""Gradient norms: against explicit Jacobians, finite differences, and Theorem 3.1 of the ENRNN paper."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import spectral_param as sp
from spectral_param.analysis import gradient_norm_bounds, gradient_norms, loss_gradient_norms
from tests.properties import examples

DOUBLE = {"dtype": torch.float64}
TIME, BATCH = 6, 3
NETWORKS = {
    "ENRNN": lambda **kw: sp.nn.ENRNN(2, 4, 3, **kw),
    "ScoRNN": lambda **kw: sp.nn.ScoRNN(2, 5, **kw),
    "two layers": lambda **kw: sp.nn.ENRNN(2, 3, 2, num_layers=2, dropout=0.5, **kw),
    "callable": lambda **kw: sp.nn.BlockRNN(2, [(5, sp.ScaledCayley())], nonlinearity=torch.sigmoid, **kw),
    "RNN": lambda **kw: nn.RNN(2, 4, **kw),
    "GRU": lambda **kw: nn.GRU(2, 4, num_layers=2, dropout=0.5, **kw),
    "LSTM": lambda **kw: nn.LSTM(2, 4, **kw),
    "projected LSTM": lambda **kw: nn.LSTM(2, 5, proj_size=3, **kw),
    "constrained RNN": lambda **kw: sp.constrain(nn.RNN(2, 4, **kw), "weight_hh_l0", sp.SpectralRadiusNorm()),
}


def blocks_of(rnn, h):
    return h.split(list(getattr(rnn, "block_sizes", [h.shape[-1]])), dim=-1)


def jacobian_norms(rnn, x):
    """‖∂h_τ/∂x_t‖ from one Jacobian of everything by everything, sequence by sequence."""
    rnn.eval()
    results = []
    for b in range(x.shape[1]):
        parts = []
        for i in range(len(blocks_of(rnn, rnn(x)[0]))):
            J = torch.autograd.functional.jacobian(
                lambda s, i=i, b=b: blocks_of(rnn, rnn(s[:, None])[0])[i][:, 0], x[:, b]
            )
            parts.append(torch.linalg.matrix_norm(J.transpose(1, 2), ord=2))
        results.append(torch.stack(parts))
    return torch.stack(results, dim=1)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.turns(2)
def test_against_the_jacobian_of_the_whole_sequence(name) -> None:
    rnn, x = NETWORKS[name](**DOUBLE), torch.randn(TIME, BATCH, 2, **DOUBLE)
    norms = gradient_norms(rnn, x)
    assert norms.shape == (len(blocks_of(rnn, rnn(x)[0])), BATCH, TIME, TIME)
    torch.testing.assert_close(norms, jacobian_norms(rnn, x), rtol=1e-10, atol=1e-14)
    assert (norms.triu(1) == 0).all()


def test_against_finite_differences() -> None:
    rnn = sp.nn.ENRNN(1, 3, 2, nonlinearity="tanh", **DOUBLE)
    x, eps = torch.randn(TIME, 1, 1, **DOUBLE), 1e-6
    norms = gradient_norms(rnn, x)
    for t in range(TIME):
        shift = torch.zeros_like(x)
        shift[t] = eps
        with torch.no_grad():
            difference = (rnn(x + shift)[0] - rnn(x - shift)[0]) / (2 * eps)
        for i, part in enumerate(blocks_of(rnn, difference)):
            torch.testing.assert_close(norms[i, 0, :, t], part[:, 0].norm(dim=-1), rtol=1e-7, atol=1e-9)


def test_state_gradients_are_products_of_jacobians() -> None:
    """For tanh, J_τ = diag(1 - h_τ²) W: the blocks of explicit products."""
    rnn, x = sp.nn.ENRNN(2, 3, 2, nonlinearity="tanh", **DOUBLE), torch.randn(TIME, 1, 2, **DOUBLE)
    norms = gradient_norms(rnn, x, wrt="state")
    h = rnn(x)[0][:, 0].detach()
    W = rnn.cells[0].weight_hh.detach()
    for t in range(TIME):
        product = torch.eye(5, **DOUBLE)
        for tau in range(t, TIME):
            if tau > t:
                product = torch.diag(1 - h[tau] ** 2) @ W @ product
            for i, rows in enumerate((slice(0, 3), slice(3, 5))):
                expected = torch.linalg.matrix_norm(product[rows, rows], 2)
                torch.testing.assert_close(norms[i, 0, tau, t], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("real_output", [False, True])
@pytest.mark.parametrize("input_dtype", [torch.float64, torch.complex128])
def test_complex_states_are_pairs_of_real_ones(real_output, input_dtype) -> None:
    rnn = sp.nn.ScoRNN(2, 3, dtype=torch.complex128, real_output=real_output)
    nn.init.constant_(rnn.cells[0].bias, -0.1)
    x = torch.randn(TIME, 1, 2, dtype=input_dtype)
    norms = gradient_norms(rnn, x)

    def states(parts):
        inputs = torch.view_as_complex(parts.unflatten(-1, (2, 2))) if input_dtype.is_complex else parts
        output = rnn(inputs[:, None])[0][:, 0]
        return output if real_output else torch.view_as_real(output).flatten(-2)

    parts = torch.view_as_real(x[:, 0]).flatten(-2) if input_dtype.is_complex else x[:, 0]
    J = torch.autograd.functional.jacobian(states, parts)
    expected = torch.linalg.matrix_norm(J.transpose(1, 2), ord=2)
    torch.testing.assert_close(norms[0, 0], expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("function", ["input", "state", "loss"])
@pytest.mark.parametrize("name", ["ENRNN", "LSTM"])
def test_layouts_and_initial_states(function, name) -> None:
    """Unbatched, batch_first and a given hx are the same numbers."""

    def measured(rnn, x, hx=None):
        if function != "loss":
            return gradient_norms(rnn, x, hx, wrt=function)
        return loss_gradient_norms(rnn, x, lambda output: output.square().sum(), hx)

    rnn, x = NETWORKS[name](**DOUBLE), torch.randn(TIME, BATCH, 2, **DOUBLE)
    first = NETWORKS[name](batch_first=True, **DOUBLE)
    first.load_state_dict(rnn.state_dict())
    norms = measured(rnn, x)
    torch.testing.assert_close(measured(first, x.transpose(0, 1)), norms)
    torch.testing.assert_close(measured(rnn, x[:, 1]), norms[:, 1])
    # A sequence that goes on from where another ended.
    hx = rnn(x[:2])[1]
    later = measured(rnn, x[2:], hx)
    expected = norms[..., 2:] if function == "loss" else norms[..., 2:, 2:]
    torch.testing.assert_close(later, expected, rtol=1e-10, atol=1e-14)
    unbatched = tuple(part[:, 1] for part in hx) if name == "LSTM" else hx[:, 1]
    torch.testing.assert_close(measured(rnn, x[2:, 1], unbatched), expected[:, 1], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", NETWORKS)
def test_loss_gradients_are_those_of_a_shift_added_to_each_state(name) -> None:
    """∂L/∂h_t = (∂h_t/∂x_t)⁺ᵀ ∂L/∂x_t where x_t acts on h_t alone: here, a shift e_t added to the state."""
    rnn, x = NETWORKS[name](**DOUBLE).eval(), torch.randn(TIME, BATCH, 2, **DOUBLE)
    weights = torch.randn(TIME, BATCH, rnn(x)[0].shape[-1], **DOUBLE)

    def loss(output):
        return (weights * output.square()).sum()

    norms = loss_gradient_norms(rnn, x, loss)
    # Step by step, with a shift of the last layer's h after each step.
    shifts = torch.zeros_like(weights, requires_grad=True)
    state, outputs = None, []
    for t in range(TIME):
        _, state = rnn(x[t : t + 1], state)
        h = state[0] if isinstance(state, tuple) else state
        h = torch.cat([h[:-1], h[-1:] + shifts[t]])
        state = (h, *state[1:]) if isinstance(state, tuple) else h
        outputs.append(h[-1])
    (grad,) = torch.autograd.grad(loss(torch.stack(outputs)), shifts)
    expected = torch.stack([part.norm(dim=-1).mT for part in blocks_of(rnn, grad)])
    torch.testing.assert_close(norms, expected, rtol=1e-12, atol=1e-14)


def test_loss_gradients_of_complex_states() -> None:
    x = torch.randn(TIME, 2, 2, **DOUBLE)
    rnn = sp.nn.ScoRNN(2, 3, dtype=torch.complex128, real_output=True)
    norms = loss_gradient_norms(rnn, x, lambda output: output[-1].sum())
    # Six real numbers with derivative 1 at the end; unitary, and with bias 0 an isometry of the moduli.
    torch.testing.assert_close(norms[0, :, -1], torch.full((2,), 6**0.5, **DOUBLE))
    plain = sp.nn.ScoRNN(2, 3, dtype=torch.complex128)
    plain.load_state_dict(rnn.state_dict())
    same = loss_gradient_norms(plain, x, lambda output: (output[-1].real + output[-1].imag).sum())
    torch.testing.assert_close(same, norms)


@examples(16)
@given(
    nonlinearity=st.sampled_from(["relu", "modrelu", "tanh", "identity"]),
    radius=st.sampled_from([0.1, 0.3, 1.0]),
    coupling=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_bounds_of_theorem_3_1_hold(nonlinearity, radius, coupling, seed) -> None:
    """Both bounds hold for the short-term block, coupled or not, with norms below and above 1."""
    torch.manual_seed(seed)
    rnn = sp.nn.ENRNN(2, 4, 5, radius=radius, mode="equal", nonlinearity=nonlinearity, coupling=coupling)
    rnn.double()
    nn.init.normal_(rnn.cells[0].bias, std=0.3)
    x = torch.randn(10, 3, 2, **DOUBLE)
    W, U = rnn.cells[0].weight_hh[4:, 4:], rnn.cells[0].weight_ih[4:]
    lag = torch.arange(10)[:, None] - torch.arange(10)
    for wrt, input_map in (("state", None), ("input", U)):
        bounds = gradient_norm_bounds(W, 9, input_map)
        measured = gradient_norms(rnn, x, wrt=wrt)[1]
        allowed = torch.where(lag >= 0, bounds[lag.clamp(min=0)], 0)
        assert (measured <= allowed * (1 + 1e-10)).all()
        assert measured.max() > 0


def test_theorem_3_1_is_sharp() -> None:
    """A multiple of a rotation, never inactive, reaches the first bound, and with m = 1 the second."""
    rnn = sp.nn.BlockRNN(1, [(2, None)], nonlinearity="identity", **DOUBLE)
    W = 0.7 * torch.tensor([[0.0, -1.0], [1.0, 0.0]], **DOUBLE)
    with torch.no_grad():
        rnn.cells[0].weight_hh = W
    x = torch.randn(8, 1, 1, **DOUBLE)
    for wrt, U in (("state", None), ("input", rnn.cells[0].weight_ih)):
        column = gradient_norms(rnn, x, wrt=wrt)[0, 0, :, 0]
        torch.testing.assert_close(column, gradient_norm_bounds(W, 7, U), rtol=1e-12, atol=0)


def test_bounds_of_bad_matrices() -> None:
    W = torch.stack([torch.eye(2), torch.full((2, 2), torch.nan)])
    bounds = gradient_norm_bounds(W, 3)
    assert bounds[0].tolist() == [1, 1, 1, 1]
    assert bounds[1].isnan().all()
    with pytest.raises(ValueError, match=r"steps: expected.*got"):
        gradient_norm_bounds(W, 0)
    for wrong in (torch.randn(8, 2), torch.randn(3), torch.zeros(0, 0), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="gradient_norm_bounds: expected"):
            gradient_norm_bounds(wrong, 3)
    for wrong in (torch.randn(3, 2), torch.randn(2), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match=r"expected U of shape \(\.\.\., k, m\) with k = 2"):
            gradient_norm_bounds(torch.eye(2), 3, wrong)


def test_what_does_not_enter_has_no_gradient() -> None:
    """Also after so many steps that the bound of the state is infinite."""
    W = 2 * torch.eye(2)
    assert gradient_norm_bounds(W, 1100)[-1] == torch.inf
    assert (gradient_norm_bounds(W, 1100, torch.zeros(2, 1)) == 0).all()
    assert gradient_norm_bounds(torch.full((2, 2), torch.nan), 3, torch.zeros(2, 1)).isnan().all()


def test_vanishing_gradients_are_still_numbers() -> None:
    """Products in double precision, far below what float32 holds."""
    rnn = sp.nn.BlockRNN(1, [(2, None)], nonlinearity="identity")
    with torch.no_grad():
        rnn.cells[0].weight_hh = 1e-3 * torch.eye(2)
    norms = gradient_norms(rnn, torch.randn(60, 1, 1))[0, 0]
    expected = norms[0, 0] * torch.tensor(1e-3).double() ** 59
    torch.testing.assert_close(norms[59, 0], expected, rtol=1e-5, atol=0)


def test_nan_in_nan_out() -> None:
    x = torch.randn(TIME, BATCH, 2)
    x[2, 1] = torch.nan
    norms = gradient_norms(nn.RNN(2, 4), x)
    assert norms[0, [0, 2]].isfinite().all()
    assert norms[0, 1, 3:, :3].isnan().all()


def test_the_module_is_left_as_it_was() -> None:
    rnn = sp.nn.ENRNN(2, 3, 2, num_layers=2, dropout=0.5)
    rnn.cells[1].eval()
    modes = [module.training for module in rnn.modules()]
    before = {name: p.clone() for name, p in rnn.named_parameters()}
    x = torch.randn(TIME, BATCH, 2, requires_grad=True)
    with torch.no_grad():
        first = gradient_norms(rnn, x)
    assert torch.equal(first, gradient_norms(rnn, x))  # no dropout
    assert not loss_gradient_norms(rnn, x, torch.sum).requires_grad
    with pytest.raises(ZeroDivisionError):
        loss_gradient_norms(rnn, x, lambda output: 1 / 0)
    assert [module.training for module in rnn.modules()] == modes
    assert x.grad is None
    for name, p in rnn.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is None


def test_networks_inputs_and_blocks_that_do_not_fit_are_refused() -> None:
    x = torch.randn(TIME, BATCH, 2)
    for function in (gradient_norms, lambda rnn, x, **kw: loss_gradient_norms(rnn, x, torch.sum, **kw)):
        with pytest.raises(ValueError, match="expected a network of one direction"):
            function(nn.RNN(2, 4, bidirectional=True), x)
        with pytest.raises(ValueError, match=r"rnn: expected.*got.*\(4, 4\)"):
            function(torch.eye(4), x)
        with pytest.raises(ValueError, match="expected inputs of 2"):
            function(nn.RNN(2, 4), x[0, 0])
        with pytest.raises(ValueError, match="add up to the hidden size 4"):
            function(nn.RNN(2, 4), x, block_sizes=[2, 3])
        with pytest.raises(ValueError, match=r"expected hx.*\(1, 3, 4\).*got.*\(1, 4\)"):
            function(nn.RNN(2, 4), x, hx=torch.zeros(1, 4))
    rnn = nn.RNN(2, 4)
    with pytest.raises(ValueError, match="expected wrt 'input' or 'state'"):
        gradient_norms(rnn, x, wrt="output")
    with pytest.raises(ValueError, match=r"one real number, got .* Take the sum or the mean"):
        loss_gradient_norms(rnn, x, lambda output: output.sum(0))


FUNCTIONS = {
    "states": gradient_norms,
    "loss": lambda rnn, x, hx=None: loss_gradient_norms(rnn, x, lambda output: output.abs().sum(), hx),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize(("make", "batch_first"), [(nn.RNN, False), (nn.LSTM, True), (sp.nn.ScoRNN, False)])
def test_states_in_another_layout(function, make, batch_first) -> None:
    """As many entries in another order would be other states."""
    rnn = make(2, 4, num_layers=2, batch_first=batch_first)
    x = torch.randn(TIME, TIME, 2)

    def measured(x, *shape):
        h = torch.zeros(shape)
        return function(rnn, x, (h, h) if make is nn.LSTM else h)

    measured(x, 2, TIME, 4)
    for shape in ((TIME, 2, 4), (2, 4, TIME), (2 * TIME * 4,)):
        with pytest.raises(ValueError, match=r"expected hx.*\(2, 6, 4\).*got"):
            measured(x, *shape)
    measured(x[0], 2, 4)
    for shape in ((4, 2), (2, 1, 4)):
        with pytest.raises(ValueError, match=r"expected hx.*\(2, 4\).*got"):
            measured(x[0], *shape)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_complex_states_for_a_real_network(function) -> None:
    x, hx = torch.randn(TIME, BATCH, 2), torch.zeros(1, BATCH, 4, dtype=torch.complex64)
    for rnn in (nn.RNN(2, 4), sp.nn.ScoRNN(2, 4)):
        with pytest.raises(ValueError, match="hx: expected a real tensor"):
            function(rnn, x, hx)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_packed_sequences_are_refused(function) -> None:
    x = nn.utils.rnn.pack_sequence([torch.randn(4, 2), torch.randn(3, 2)])
    with pytest.raises(ValueError, match="sequences of one length, got PackedSequence"):
        function(nn.RNN(2, 4), x)


def test_block_sizes_can_be_chosen() -> None:
    rnn, x = nn.RNN(2, 4), torch.randn(TIME, BATCH, 2)
    whole = loss_gradient_norms(rnn, x, torch.sum)
    halves = loss_gradient_norms(rnn, x, torch.sum, block_sizes=[1, 3])
    torch.testing.assert_close(halves.square().sum(0, keepdim=True).sqrt(), whole)
