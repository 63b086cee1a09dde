"""DeltaProduct: its equations, states handed on, what never moves apart, copies, compilers, arguments."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import spectral_param as sp
from tests.messages import refused

Net = sp.nn.DeltaProduct
VARIANTS = {
    "signed": {},
    "overwrite with a rate": {"strength": "overwrite", "rate": 0.9},
    "reflection without values": {"strength": "reflection", "values": False, "head_dim": 3},
    "three of one head": {"num_heads": 1, "reflections": 3, "bias": False, "rate": 1.0},
}
every_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def built(options, layers=2, dtype=torch.float64):
    return Net(3, 8, layers, **{"num_heads": 2, **options}, dtype=dtype)


def by_hand(cell, x, S):
    """The equations of the cell for one input and one state ``(heads, d, e)``."""
    h, d, e = cell.state_shape
    r = cell.reflections
    z = cell.weight_ih @ x + (0 if cell.bias_ih is None else cell.bias_ih)
    sizes = [h * d, h * r * d, h * r * e * cell.values, h * r * (cell.strength != "reflection")]
    q, k, v, b, a = z.split([*sizes, len(z) - sum(sizes)])
    largest = {"signed": 2, "overwrite": 1, "reflection": 2}[cell.strength]
    outputs, states = [], []
    for i in range(h):
        M = S[i]
        if cell.rate is not None:
            M = cell.rate * torch.sigmoid(4 + a[i]) * M
        for j in range(r):
            key = k.view(h, r, d)[i, j]
            key = key / key.norm()
            value = v.view(h, r, e)[i, j] if cell.values else 0
            β = largest if cell.strength == "reflection" else largest * torch.sigmoid(b.view(h, r)[i, j])
            M = M - β * torch.outer(key, key @ M - value)
        query = q.view(h, d)[i]
        outputs.append(M.mT @ query / query.norm())
        states.append(M)
    return torch.cat(outputs), torch.stack(states)


@every_variant
def test_the_equations_one_step_at_a_time(options) -> None:
    net, x = built(options), torch.randn(17, 3).double()
    y, last = net(x)
    states = [c.start if c.start is not None else torch.zeros(c.state_shape).double() for c in net.cells]
    for t, features in enumerate(x):
        for i, cell in enumerate(net.cells):
            features, states[i] = by_hand(cell, features, states[i])
        torch.testing.assert_close(y[t], features)
    torch.testing.assert_close(last, torch.stack(states))
    state, found = None, []
    for part in x.split([1, 1, 5, 10]):
        output, state = net(part, state)
        found.append(output)
    torch.testing.assert_close(torch.cat(found), y)
    torch.testing.assert_close(state, last)


@every_variant
def test_packed_sequences_are_those_one_by_one(options) -> None:
    net, x, lengths = built(options), torch.randn(9, 4, 3).double(), [5, 9, 1, 9]
    hx = torch.randn(2, 4, *net.state_shape).double()
    packed, last = net(pack_padded_sequence(x, lengths, enforce_sorted=False), hx)
    y, _ = pad_packed_sequence(packed)
    for i, length in enumerate(lengths):
        alone, state = net(x[:length, i], hx[:, i])
        torch.testing.assert_close(y[:length, i], alone)
        torch.testing.assert_close(last[:, i], state)


def test_a_cell_is_one_step_of_the_layer() -> None:
    net, x = built({}, layers=1), torch.randn(1, 4, 3).double()
    y, last = net(x)
    for a, b in zip(net.cells[0](x[0]), (y[0], last[0]), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(net.cells[0](x[0, 1], last[0, 1]), net(x[:, 1], last[:, 1]), strict=True):
        torch.testing.assert_close(a, b[0])


def test_shapes_are_those_of_torch() -> None:
    for options in ({}, {"batch_first": True}):
        net, like = Net(3, 8, 2, num_heads=2, **options), nn.GRU(3, 8, 2, **options)
        for shape in ((7, 2, 3), (7, 3)):
            x = torch.randn(shape)
            (y, state), (expected, h) = net(x), like(x)
            assert y.shape == expected.shape
            assert state.shape == (*h.shape[:-1], 2, 4, 4)
    assert net.output_size == 8


@every_variant
@pytest.mark.turns(2)
def test_two_states_never_move_apart_in_training(options) -> None:
    torch.manual_seed(0)
    net = built(options, layers=1)
    rate = options.get("rate") or 1.0
    optimizer = torch.optim.Adam(net.parameters(), lr=0.3)
    for _ in range(12):
        x = 10 * torch.randn(20, 50, 3).double()
        first, second = torch.randn(2, 1, 50, *net.state_shape).double()
        start = (first - second).flatten(2).norm(dim=-1)
        before = start
        with torch.no_grad():
            S, T = first, second
            for t in range(5):
                S, T = net(x[t : t + 1], S)[1], net(x[t : t + 1], T)[1]
                after = (S - T).flatten(2).norm(dim=-1)
                assert (after <= rate * before + 1e-10).all()
                before = after
        apart = (net(x, first)[1] - net(x, second)[1]).flatten(2).norm(dim=-1)
        assert (apart <= rate**20 * start + 1e-10).all()
        optimizer.zero_grad()
        (-apart.sum()).backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reflections_without_values_keep_the_length(dtype) -> None:
    net = Net(3, 8, strength="reflection", values=False, head_dim=5, dtype=dtype)
    with torch.no_grad():
        y, last = net(torch.randn(10_000, 3, dtype=dtype))
    length = net.cells[0].start.norm()
    assert abs(last.norm() / length - 1) <= (1e-5 if dtype == torch.float32 else 1e-11)
    assert (y.norm(dim=-1) <= length * (1 + 1e-5)).all()


def card_words(count, length, source):
    """Random permutations of three cards, and the order of the cards after each, as numbers from 0 to 5."""
    orders = list(itertools.permutations(range(3)))
    table = torch.tensor([[orders.index(tuple(p[i] for i in q)) for q in orders] for p in orders])
    letters = torch.randint(6, (length, count), generator=source)
    found = [letters[0]]
    for letter in letters[1:]:
        found.append(table[letter, found[-1]])
    return letters, torch.stack(found)


def test_three_shuffled_cards_are_followed_beyond_the_lengths_of_training() -> None:
    torch.manual_seed(0)
    source = torch.Generator().manual_seed(0)
    net, head = Net(6, 16, num_heads=4, strength="reflection", values=False), nn.Linear(16, 6)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=2e-2)
    for step in range(150):
        x, y = card_words(32, 4 if step < 100 else 12, source)
        logits = head(net(nn.functional.one_hot(x, 6).float())[0])
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    x, y = card_words(64, 48, source)
    right = head(net(nn.functional.one_hot(x, 6).float())[0]).argmax(dim=-1) == y
    assert right.float().mean() >= 0.9


@every_variant
def test_copies_checkpoints_and_resets(options) -> None:
    net, x = built(options), torch.randn(6, 2, 3).double()
    y = net(x)[0]
    y.square().sum().backward()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(x)[0], y)
    other = built(options)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x)[0], y)
    torch.manual_seed(0)
    net.reset_parameters()
    torch.manual_seed(0)
    assert torch.equal(net(x)[0], built(options)(x)[0])


@every_variant
def test_built_without_memory_and_started_afterwards(options) -> None:
    with torch.device("meta"):
        net = built(options)
        on_meta = net(torch.randn(6, 2, 3).double())
    assert [t.shape for t in on_meta] == [t.shape for t in built(options)(torch.randn(6, 2, 3).double())]
    net.to_empty(device="cpu").reset_parameters()
    assert net(torch.randn(6, 2, 3).double())[0].isfinite().all()


def test_autocast_leaves_the_network_in_its_precision() -> None:
    net, x = built({}, dtype=torch.float32), torch.randn(40, 2, 3)
    expected = net(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for a, b in zip(net(x), expected, strict=True):
            assert torch.equal(a, b)
        net(x)[0].sum().backward()
    half = net.bfloat16()(x.bfloat16())
    assert half[0].dtype == torch.bfloat16
    assert (half[0].float() - expected[0]).norm() < 0.1 * expected[0].norm()


@pytest.mark.nightly
@pytest.mark.turns(2)
@pytest.mark.parametrize("options", [VARIANTS["overwrite with a rate"], VARIANTS["signed"]])
def test_compiled_and_exported(options) -> None:
    net, x = built(options, layers=1, dtype=torch.float32), torch.randn(20, 2, 3)
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    found, expected = compiled(x), net(x)
    torch.testing.assert_close(found, expected)
    parameters = list(net.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(found[0].square().sum(), parameters),
        torch.autograd.grad(expected[0].square().sum(), parameters),
    )
    program = torch.export.export(net.eval(), (x,))
    assert "spectral_param" not in str(program.graph)
    torch.testing.assert_close(program.module()(x), net(x))


def test_a_gradient_penalty_is_right_when_compiled() -> None:
    net, x = built({}, layers=1), torch.randn(9, 2, 3).double()

    def penalty(model):
        inputs = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(model(inputs)[0].square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(g.square().sum(), list(net.parameters()))

    torch.compiler.reset()
    torch.testing.assert_close(penalty(torch.compile(net, backend="eager")), penalty(net))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("input_size", {"input_size": 0}),
        ("hidden_size", {"hidden_size": 9}),
        ("hidden_size", {"hidden_size": 0}),
        ("num_heads", {"num_heads": 0}),
        ("reflections", {"reflections": 1.5}),
        ("head_dim", {"head_dim": 0}),
        ("strength", {"strength": "weak"}),
        ("values", {"values": "no"}),
        ("rate", {"rate": 0.0}),
        ("rate", {"rate": 1.1}),
        ("rate", {"rate": float("nan")}),
        ("bias", {"bias": 1}),
        ("dropout", {"dropout": 2.0}),
        ("dtype", {"dtype": torch.complex64}),
    ],
)
def test_arguments_out_of_range_are_refused(name, options) -> None:
    with refused(name):
        Net(**{"input_size": 3, "hidden_size": 8, "num_heads": 2, **options})


def test_states_and_inputs_that_do_not_fit_are_refused() -> None:
    net = Net(3, 8, num_heads=2)
    x = torch.randn(5, 2, 3)
    for hx in (torch.zeros(1, 2, 8), torch.zeros(1, 3, 2, 4, 4), torch.zeros(2, 2, 2, 4, 4)):
        with refused("hx", r"\(1, 2, 2, 4, 4\)"):
            net(x, hx)
    with refused("hx"):
        net(x, torch.zeros(1, 2, 2, 4, 4).double())
    with refused("input"):
        net(x.double())
    cell = net.cells[0]
    with refused("hx", r"hx.expand\(batch, -1, -1, -1\)"):
        cell(x[0], torch.zeros(1, 2, 4, 4))
    assert cell(x[0], torch.zeros(1, 2, 4, 4).expand(2, -1, -1, -1))[0].shape == (2, 8)
    with refused("input"):
        cell(x)
