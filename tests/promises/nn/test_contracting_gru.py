"""ContractingGRU: what it computes, its gradients, what it forgets, and which starts are refused."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import spectral_param as sp
from tests.messages import refused

GRU = sp.nn.ContractingGRU


@pytest.mark.parametrize("bias", [True, False])
def test_computes_what_torch_nn_gru_computes_where_nothing_is_limited(bias) -> None:
    gru = nn.GRU(3, 6, 2, bias=bias, bidirectional=True, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in gru.named_parameters():
            parameter.mul_(0.1 if "hh" in name else 1)
    rnn = GRU.from_gru(gru, rate=0.999)
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    start = 2 * torch.rand(4, 4, 6, dtype=torch.float64) - 1
    for found, wanted in zip(rnn(x, start), gru(x, start), strict=True):
        torch.testing.assert_close(found, wanted)
    lengths = [7, 2, 5, 2]
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    torch.testing.assert_close(rnn(packed)[0].data, gru(packed)[0].data)
    torch.testing.assert_close(rnn(packed)[1], gru(packed)[1])


@pytest.mark.parametrize(("rate", "scale"), [pytest.param(0.7, 5.0, marks=pytest.mark.nightly), (1, 0.3)])
def test_derivatives_of_first_and_second_order(rate, scale) -> None:
    torch.manual_seed(0)
    rnn = GRU(1, 2, rate=rate, dtype=torch.float64)
    names = [name for name, _ in rnn.named_parameters()]
    values = [(scale * p.detach()).requires_grad_() for p in rnn.parameters()]
    x = torch.randn(3, 2, 1, dtype=torch.float64, requires_grad=True)
    h = (torch.rand(1, 2, 2, dtype=torch.float64) - 0.5).requires_grad_()
    packed = nn.utils.rnn.pack_padded_sequence(x.detach(), [3, 1])

    def run(x, h, *values):
        rows = nn.utils.rnn.PackedSequence(x.flatten(0, 1)[: len(packed.data)], packed.batch_sizes)
        output, last = torch.func.functional_call(rnn, dict(zip(names, values, strict=True)), (rows, h))
        return output.data, last

    assert torch.autograd.gradcheck(run, (x, h, *values))
    assert torch.autograd.gradgradcheck(run, (x, h, *values), nondet_tol=1e-12)


@pytest.mark.parametrize(("rate", "layers"), [(0.9, 1), (0.98, 2), (1, 1)])
@pytest.mark.turns(3)
def test_the_rate_holds_whatever_training_makes_of_the_parameters(rate, layers) -> None:
    torch.manual_seed(0)
    rnn = GRU(2, 6, layers, rate=rate, dtype=torch.float64)
    optimizer = torch.optim.Adam(rnn.parameters(), lr=0.1)
    for step in range(30):
        x = 10 * torch.randn(6, 4, 2, dtype=torch.float64)
        first, second = 2 * torch.rand(2, layers, 4, 6, dtype=torch.float64) - 1
        certificate = sp.analysis.contraction(rnn)
        assert certificate.rate <= rate * (1 + 1e-5)
        scaled = [(rnn(x[:k], first)[1] - rnn(x[:k], second)[1]) for k in (1, 6)]
        scaled = [(t.transpose(0, 1) / certificate.scaling).abs().flatten(1).amax(1) for t in scaled]
        before = ((first - second).transpose(0, 1) / certificate.scaling).abs().flatten(1).amax(1)
        for k, after in zip((1, 6), scaled, strict=True):
            assert (after <= certificate.rate**k * before * (1 + 1e-9) + 1e-13).all(), step
        optimizer.zero_grad()
        (-scaled[1].sum()).backward()
        optimizer.step()


def test_a_reset_gate_that_turns_steeply_leaves_the_rate() -> None:
    """At r = 1/2, z = 0 and ν = 0 the slope is U_n (r + h U_r/4): most of it is that of the reset gate."""
    cell = sp.nn.ContractingGRUCell(3, 1, rate=1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.eye(3))
        cell.weight_hh.copy_(torch.tensor([[36.0], [0.0], [0.2]]))
        cell.log_scaling.zero_()
    (U_r, _, U_n), _ = cell.bounded()
    x, h = torch.tensor([-U_r.item(), -100.0, -U_n.item() / 2], dtype=torch.float64), torch.ones(1).double()
    slope = torch.autograd.functional.jacobian(lambda h: cell(x, h), h).item()
    assert slope == pytest.approx((U_n * (1 / 2 + U_r / 4)).item(), rel=1e-12)
    assert 0.4 <= slope <= 1


@pytest.mark.parametrize("size", [1e-20, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rate_holds_for_any_finite_parameters(size, dtype) -> None:
    rnn = GRU(2, 5, rate=0.95, dtype=dtype)
    with torch.no_grad():
        rnn.cells[0].weight_hh.normal_().mul_(size)
        rnn.cells[0].log_scaling.normal_().mul_(1e6)
    certificate = sp.analysis.contraction(rnn)
    assert certificate.rate <= 0.95
    assert rnn(torch.randn(3, 1, 2, dtype=dtype))[0].isfinite().all()


def test_a_start_outside_the_cube_is_refused_and_the_last_states_are_taken() -> None:
    rnn = GRU(2, 4)
    _, h_n = rnn(100 * torch.randn(50, 3, 2))
    rnn(torch.randn(5, 3, 2), h_n)
    with refused("hx"):
        rnn(torch.randn(5, 3, 2), torch.full((1, 3, 4), 1.01))
    with refused("hx"):
        sp.nn.ContractingGRUCell(2, 4)(torch.randn(2), torch.full((4,), -1.01))


def test_a_cell_is_one_step_of_the_layer() -> None:
    rnn = GRU(2, 4)
    x, h = torch.randn(1, 3, 2), torch.rand(1, 3, 4)
    torch.testing.assert_close(rnn.cells[0](x[0], h[0]), rnn(x, h)[0][0])
    cell, theirs = sp.nn.ContractingGRUCell(2, 4), nn.GRUCell(2, 4)
    assert cell.load_state_dict(theirs.state_dict(), strict=False).missing_keys == ["log_scaling"]


@pytest.mark.nightly
def test_compiled_and_exported() -> None:
    rnn = GRU(2, 4, rate=0.9)
    x = torch.randn(3, 3, 2)
    torch.compiler.reset()
    compiled = torch.compile(rnn, fullgraph=True, backend="aot_eager")
    wanted = rnn(x)[0]
    torch.testing.assert_close(compiled(x)[0], wanted)
    found = torch.autograd.grad(compiled(x)[0].square().sum(), list(rnn.parameters()))
    for a, b in zip(
        found, torch.autograd.grad(rnn(x)[0].square().sum(), list(rnn.parameters())), strict=True
    ):
        torch.testing.assert_close(a, b)
    program = torch.export.export(rnn, (x,))
    assert "spectral_param" not in str(program.graph)
    torch.testing.assert_close(program.module()(x)[0], wanted)


@pytest.mark.nightly
def test_an_exported_program_runs_without_this_library(tmp_path) -> None:
    rnn, x = GRU(2, 4, rate=0.9), torch.randn(5, 3, 2)
    torch.export.save(torch.export.export(rnn, (x,)), tmp_path / "program.pt2")
    torch.save((x, rnn(x)[0].detach()), tmp_path / "wanted.pt")
    code = (
        "import sys, torch; sys.modules['spectral_param'] = None\n"
        "x, wanted = torch.load('wanted.pt'); program = torch.export.load('program.pt2').module()\n"
        "torch.testing.assert_close(program(x)[0], wanted)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"rate": 0.0}, "rate"),
        ({"rate": 1.01}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"bias": 1}, "bias"),
        ({"dtype": torch.complex64}, "dtype"),
    ],
)
def test_each_bad_argument_is_named(options, name) -> None:
    with refused(name):
        GRU(3, 5, **options)
    if name == "rate":
        with refused("rate"):
            GRU.from_gru(nn.GRU(3, 5), **options)
    with refused("module"):
        GRU.from_gru(nn.LSTM(3, 5))
