"""What a read of a constrained weight keeps: one evaluation for each change, and its own gradient."""

import copy
import ctypes
import gc
import weakref

import pytest
import torch
from torch import Tensor

import spectral_param as sp
from spectral_param.testing import holder, originals
from tests.promises.cases import CASES
from tests.training import step

LAYERS = {
    "Linear": lambda: (torch.nn.Linear(6, 6), "weight"),
    "RNN": lambda: (torch.nn.RNN(6, 6), "weight_hh_l0"),
    "LSTM": lambda: (torch.nn.LSTM(6, 6), "weight_hh_l0"),
    "GRU": lambda: (torch.nn.GRU(6, 6), "weight_hh_l0"),
}


CALLS = []


class Skew(sp.Parametrization):
    """Skew matrices, as a user may write them; what is called is counted."""

    def evaluate(self, T):
        CALLS.append("evaluate")
        return super().evaluate(T)

    def reference(self, T):
        CALLS.append("reference")
        W = T.triu(1) - T.triu(1).mT
        if W.requires_grad:
            W.register_hook(lambda _: CALLS.append("pull back"))
        return W

    def invert(self, W):
        return W.triu(1)

    def start(self, like):
        return torch.zeros_like(like)

    def free_parameters(self, T):
        n = T.shape[-1]
        return n * (n - 1) // 2


class Radius(sp.SpectralRadiusNorm):
    """Counts how often its eigenvalues are asked for."""

    def evaluate(self, T):
        CALLS.append("evaluate")
        return super().evaluate(T)


@pytest.mark.parametrize("make", [Skew, Radius])
@pytest.mark.parametrize("name", LAYERS)
def test_one_evaluation_for_each_training_step(name, make) -> None:
    layer, weight = LAYERS[name]()
    sp.constrain(layer, weight, make())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    step(layer, optimizer)
    for _ in range(3):
        CALLS.clear()
        step(layer, optimizer)
        assert CALLS.count("evaluate") == 1
        assert CALLS.count("reference") <= 2  # A backward pass of a second read takes the reference.


@pytest.mark.parametrize("make", [Skew, Radius])
def test_no_evaluation_while_the_weight_stays_and_one_after_each_change(make) -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", make())
    original, constraint = layer.parametrizations.weight.original, layer.parametrizations.weight[0]
    layer(torch.randn(2, 6))

    def evaluations(reads=3):
        CALLS.clear()
        for _ in range(reads):
            layer(torch.randn(2, 6))
        return CALLS.count("evaluate")

    assert evaluations() == 0
    original.data.mul_(1.1)  # The version counter does not see it.
    assert evaluations() == 1
    constraint.number = 3.0
    assert evaluations() == 1
    with torch.no_grad():
        original.add_(0.1)
    with torch.inference_mode():
        assert evaluations() == 1
    layer(torch.randn(5, 6)).sum().backward()
    layer.load_state_dict({key: 2 * value for key, value in layer.state_dict().items()})
    assert evaluations() == 1


# Memory is compared where entries lie one after the other; of another order of entries, torch compares them.
@pytest.mark.parametrize("order", ["by rows", "by columns"])
@pytest.mark.parametrize(
    ("dtype", "n"),
    [(torch.float32, 300), (torch.float32, 301), (torch.bfloat16, 301), (torch.complex64, 256)],
)
def test_a_change_of_one_entry_of_a_large_weight_is_seen(dtype, n, order) -> None:
    W = torch.randn(n, n, dtype=dtype)
    W = W.mT.contiguous().mT if order == "by columns" else W
    layer = torch.nn.Linear(n, n, bias=False)
    layer.weight = torch.nn.Parameter(W)
    sp.constrain(layer, "weight", Skew())
    original = layer.parametrizations.weight.original
    layer.weight.sum()
    for i, j in ((0, 1), (n // 2, n - 1), (n - 2, n - 1)):
        for value in (3.0, -3.0, torch.nan, 0.0, 1.0):
            original.data[i, j] = value  # The version counter does not see it.
            read = layer.weight[i, j]
            assert read == value or (value != value and read != read)


WRITES = {
    "in place": lambda W: W.zero_(),
    "data": lambda W: W.data.zero_(),
    "view": lambda W: W.mT[1:].fill_(9),
    "numpy": lambda W: W.numpy().fill(3),
    "dlpack": lambda W: torch.from_dlpack(W).fill_(3),
    "storage": lambda W: W.untyped_storage().fill_(1),
    "out": lambda W: torch.add(W, 1, out=W),
    "many": lambda W: torch._foreach_add_([W], 1),
    "init": torch.nn.init.orthogonal_,
    "shared": lambda W: W.share_memory_().zero_(),
    "address": lambda W: ctypes.memset(W.data_ptr(), 1, W.nbytes),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("write", WRITES)
def test_a_weight_that_is_written_to_leaves_other_reads_alone(write, mode) -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", sp.ScaledCayley())
    with torch.no_grad():
        before = layer.weight.clone()
    with mode():
        first, written = layer.weight, layer.weight
        array = first.numpy()
        WRITES[write](written)
        assert not torch.equal(written, before)
        WRITES[write](layer.weight)
        assert torch.equal(first, before)
        assert torch.equal(torch.from_numpy(array), before)
        assert torch.equal(layer.weight, before)
    (layer.weight * before).sum().backward()
    assert torch.equal(layer.weight, before)


def test_a_removed_constraint_leaves_memory_that_can_be_freed_and_taken_again() -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", sp.ScaledCayley())
    with torch.no_grad():
        layer.weight.sum()
        storage = sp.remove(layer).weight.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        storage.resize_(size)
        layer.weight.zero_()  # As FSDP does.


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.SpectralNorm, sp.SchurForm])
@pytest.mark.turns(3)
def test_a_weight_outlives_its_layer(make) -> None:
    layer = sp.constrain(torch.nn.Linear(40, 40), "weight", make())
    with torch.no_grad():
        kept = [layer.weight for _ in range(3)]
    before = kept[0].clone()
    kept[0].zero_()
    layer(torch.randn(2, 40)).sum().backward()
    del layer
    gc.collect()
    assert torch.equal(kept[1], before)
    assert torch.equal(kept[2], before)
    kept[2].mul_(2)
    assert torch.equal(kept[1], before)


def test_a_second_read_has_the_gradient_without_another_evaluation() -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", Radius())
    original = layer.parametrizations.weight.original
    original.data.mul_(1.1)
    (expected,) = torch.autograd.grad(layer.weight[0].sum(), original)
    CALLS.clear()
    (found,) = torch.autograd.grad(layer.weight[0].sum(), original)
    assert not CALLS
    torch.testing.assert_close(found, expected)


# Later reads ---------------------------------------------------------------------------------------

SHARED = {"Skew": Skew, "Radius": sp.SpectralRadiusNorm, "Schur": lambda: sp.SchurForm(radius=0.9)}


def changed(make):
    """Return a layer in double precision whose weight has not been read since a change, and its originals."""
    torch.manual_seed(0)
    layer = sp.constrain(torch.nn.Linear(6, 6, bias=False, dtype=torch.float64), "weight", make())
    found = [p for p in layer.parameters() if p.requires_grad]
    for original in found:
        original.data.add_(0.1 * torch.randn_like(original))
    return layer, found


@pytest.mark.parametrize("before", [torch.no_grad, torch.enable_grad])
def test_gradients_of_many_reads_are_pulled_back_once(before) -> None:
    layer, found = changed(Skew)
    G = torch.randn(6, 6, dtype=torch.float64)
    CALLS.clear()
    with before():
        first = layer(torch.randn(2, 6, dtype=torch.float64))
    sum((k * G * layer.weight).sum() for k in range(10)).backward()
    # A read without a gradient leaves no graph.
    assert CALLS.count("reference") == (2 if before is torch.no_grad else 1)
    assert CALLS.count("pull back") == 1
    torch.testing.assert_close(found[0].grad, 45 * (G - G.mT).triu(1))
    del first


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_reads_have_their_gradients_together_and_one_by_one_in_any_order(make) -> None:
    layer, found = changed(make)
    G = torch.randn(4, 6, 6, dtype=torch.float64)
    parts = []
    for g in G:
        other, of_it = changed(make)
        parts.append(torch.autograd.grad((g * other.weight).sum(), of_it))
    together = torch.autograd.grad(sum((g * layer.weight).sum() for g in G), found)
    for expected, value in zip(map(sum, zip(*parts, strict=True)), together, strict=True):
        torch.testing.assert_close(value, expected)
    reads = [layer.weight for _ in G]
    for k in (2, 0, 3, 1):
        # Of second order where another read has been gone through already.
        values = torch.autograd.grad((G[k] * reads[k]).sum(), found, create_graph=k == 3)
        for value, expected in zip(values, parts[k], strict=True):
            torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_later_reads_after_a_change_have_its_gradient(make) -> None:
    layer, found = changed(make)
    reads = [layer.weight for _ in range(3)]
    for original in found:
        original.data.mul_(0.5)
    twin = copy.deepcopy(layer)
    G = torch.randn(6, 6, dtype=torch.float64)
    (2 * G * twin.weight).sum().backward()
    later = [layer.weight for _ in range(3)][1:]
    sum((G * W).sum() for W in later).backward()
    for original, other in zip(found, twin.parameters(), strict=True):
        torch.testing.assert_close(original.grad, other.grad)
    del reads


def test_a_gradient_goes_to_the_parameter_that_was_there_at_the_read() -> None:
    layer, (before,) = changed(Skew)
    first, second, third = layer.weight, layer.weight, layer.weight
    chain = layer.parametrizations.weight
    chain.original = torch.nn.Parameter(before.detach())  # Shares its memory.
    fourth, fifth = layer.weight, layer.weight
    G = torch.randn(6, 6, dtype=torch.float64)
    (G * (fourth + fifth)).sum().backward()
    assert before.grad is None
    expected = chain.original.grad
    (G * (second + third)).sum().backward()
    torch.testing.assert_close(before.grad, expected)
    (G * first).sum().backward()
    torch.testing.assert_close(before.grad, 1.5 * expected)


def test_originals_that_depend_on_others_leave_no_graph() -> None:
    layer, (original,) = changed(Skew)
    inner = 2 * original
    known = weakref.ref(inner)
    del layer.parametrizations.weight.original
    layer.parametrizations.weight.original = inner
    (layer.weight.sum() + (layer.weight * torch.arange(6)).sum()).backward()
    del layer.parametrizations.weight.original
    assert original.grad.abs().max() > 0
    del inner
    gc.collect()
    assert known() is None


BLOCKS = [(3, sp.ScaledCayley()), (3, sp.SpectralRadiusNorm())]
HELD = {
    **SHARED,
    "blocks": lambda: sp.BlockTriangular(BLOCKS, coupling=True),
    "diagonal": lambda: sp.LyapunovForm(metric="diagonal"),
    "gain": lambda: sp.BoundedGain(1.0, states=3),
}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(of, id=name, marks=() if name in ("Skew", "diagonal") else pytest.mark.nightly)
        for name, of in HELD.items()
    ],
)
def test_hooks_that_know_their_model_leave_no_graph(make) -> None:
    layer, found = changed(make)
    known = weakref.ref(layer)
    for original in found:
        original.register_hook(lambda G, layer=layer: None)
    (layer.weight + layer.weight + layer.weight).sum().backward()
    del layer, found, original
    gc.collect()
    assert known() is None


class Second(sp.Parametrization):
    """The second original alone."""

    def reference(self, A, B):
        return B

    def invert(self, W):
        return torch.zeros_like(W), W.clone()

    def start(self, like):
        return torch.zeros_like(like), torch.ones_like(like)

    def free_parameters(self, A, B):
        return B.numel()


def test_an_original_that_changes_nothing_has_no_gradient() -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", Second())
    first, second = layer.parametrizations.weight.parameters(recurse=False)
    second.requires_grad_(False)
    (layer(torch.randn(2, 6)).sum() + layer.weight.sum()).backward()
    assert first.grad is None
    assert layer.bias.grad is not None


def test_originals_are_swapped_after_later_reads() -> None:
    layer, (original,) = changed(Skew)
    reads = [layer.weight for _ in range(3)]
    del reads
    torch.utils.swap_tensors(original, torch.nn.Parameter(2 * original.detach()))
    assert layer.weight.abs().max() > 0


def test_later_reads_see_which_originals_are_trained() -> None:
    layer, found = changed(lambda: sp.SchurForm(radius=0.9))
    reads = [layer.weight, layer.weight]
    found[0].requires_grad_(False)
    reads += [layer.weight, layer.weight]
    sum(W.square().sum() for W in reads[2:]).backward()
    assert found[0].grad is None
    assert all(p.grad is not None for p in found[1:])
    sum(W.sum() for W in reads[:2]).backward()
    assert found[0].grad is None
    del reads
    kept = [layer.weight, layer.weight]  # What these share knows of no gradient for the frozen one.
    found[0].requires_grad_()
    layer.weight.square().sum().backward()
    assert found[0].grad is not None
    del kept


class Scaled(sp.ScaledCayley):
    """An orthogonal matrix times a number."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    evaluate = sp.Parametrization.evaluate

    def reference(self, T):
        return self.factor * super().reference(T)


class Buffered(Scaled):
    """Its number is a buffer, as what may be edited in place has to be."""

    def __init__(self, factor):
        super().__init__(None)
        del self.factor
        self.register_buffer("factor", factor)


@pytest.mark.parametrize(
    ("constraint", "edit"),
    [
        (Scaled(2.0), lambda c: setattr(c, "factor", 3.0)),
        (Scaled(torch.tensor(2.0)), lambda c: setattr(c, "factor", torch.tensor(3.0))),
        (Buffered(torch.tensor(2.0)), lambda c: c.factor.data.fill_(3.0)),
        (Buffered(torch.tensor(2.0)), lambda c: c.state_dict()["factor"].copy_(torch.tensor(3.0))),
    ],
    ids=["number", "tensor", "buffer", "state_dict"],
)
def test_an_attribute_that_is_set_and_a_buffer_that_is_edited_are_seen(constraint, edit) -> None:
    module = torch.nn.Linear(4, 4, bias=False)
    module.weight.data = torch.eye(4)
    torch.nn.utils.parametrize.register_parametrization(module, "weight", constraint, unsafe=True)
    assert torch.linalg.matrix_norm(module.weight, 2).item() == pytest.approx(2)
    edit(constraint)
    assert torch.linalg.matrix_norm(module.weight, 2).item() == pytest.approx(3)


class Masked(sp.SignPattern):
    """Has a buffer that is sparse."""

    def __init__(self, mask):
        super().__init__(torch.ones(mask.shape))
        self.register_buffer("mask", mask.to_sparse())

    def reference(self, T):
        return super().reference(T) * self.mask.to_dense()


def test_a_sparse_buffer_may_be_part_of_a_constraint() -> None:
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", Masked(torch.eye(4)))
    layer.parametrizations.weight.original.data.fill_(1.0)
    for _ in range(2):
        layer(torch.ones(2, 4)).sum().backward()
        assert torch.equal(layer.weight, torch.eye(4))
    layer.parametrizations.weight[0].mask._values().zero_()
    assert not layer.weight.any()


def test_a_replaced_block_is_seen() -> None:
    layer = torch.nn.Linear(4, 4)
    blocks = [(2, sp.SpectralRadiusNorm(1.0)), (2, sp.SpectralRadiusNorm(1.0))]
    sp.constrain(layer, "weight", sp.BlockTriangular(blocks))
    assert sp.functional.spectral_radius(layer.weight[:2, :2]).item() == pytest.approx(1)
    layer.parametrizations.weight[0].blocks[0] = sp.SpectralRadiusNorm(0.5)
    assert sp.functional.spectral_radius(layer.weight[:2, :2]).item() == pytest.approx(0.5)


def matrices_in_memory(n: int) -> list[Tensor]:
    """Return the ordinary tensors whose last two dimensions are n."""
    gc.collect()
    kinds = (Tensor, torch.nn.Parameter)  # Not the fake ones that a compiler keeps.
    return [t for t in gc.get_objects() if type(t) in kinds and t.shape[-2:] == (n, n)]


def test_at_most_three_tensors_of_the_size_of_the_weight_after_a_step() -> None:
    n = 128
    before = matrices_in_memory(n)  # Those that other tests keep; held, so that no address is used again.
    layer = sp.constrain(torch.nn.Linear(n, n, bias=False), "weight", sp.SpectralRadiusNorm())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(3):
        layer(torch.randn(2, n)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    old, new = ({t.untyped_storage().data_ptr() for t in each} for each in (before, matrices_in_memory(n)))
    assert len(new - old) <= 3


def test_the_gradient_belongs_to_the_radius_of_the_read() -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", sp.SpectralRadiusNorm())
    original, constraint = layer.parametrizations.weight.original, layer.parametrizations.weight[0]
    original.data.mul_(1.1)
    reference = copy.deepcopy(layer)
    (expected,) = torch.autograd.grad(reference.weight[0].sum(), reference.parametrizations.weight.original)
    first, again = layer.weight, layer.weight
    constraint.radius = 2.0
    for W in (first, again):
        torch.testing.assert_close(torch.autograd.grad(W[0].sum(), original)[0], expected)
    constraint.radius = 1.0
    layer.weight[0].sum().backward()
    late = layer.weight
    constraint.radius = 2.0
    torch.testing.assert_close(torch.autograd.grad(late[0].sum(), original)[0], expected)
    # The remedy: read again. W = r T/ρ, so the gradient doubles with r.
    torch.testing.assert_close(torch.autograd.grad(layer.weight[0].sum(), original)[0], 2 * expected)


def per_matrix(kind):
    """Return a constraint that has a number for each of two matrices, and the name of its attribute."""
    numbers = torch.tensor([1.0, 2.0])
    return {
        "radius": lambda: (sp.SpectralRadiusNorm(numbers), "radius"),
        "at_most": lambda: (sp.SpectralRadiusNorm(numbers, mode="at_most"), "radius"),
        "absolute": lambda: (sp.SpectralRadiusNorm(numbers, of="absolute"), "radius"),
        "tracking": lambda: (sp.SpectralRadiusNorm(numbers, solver="tracking"), "radius"),
        "abscissa": lambda: (sp.SpectralAbscissa(numbers), "abscissa"),
        "norm": lambda: (sp.SpectralNorm(numbers, mode="equal"), "norm"),
        "Lyapunov": lambda: (sp.LyapunovForm(numbers), "radius"),
        "Lyapunov-growth": lambda: (sp.LyapunovForm(numbers, growth=3.0), "radius"),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("radius", torch.complex128),
        ("at_most", torch.float32),
        ("absolute", torch.float32),
        ("tracking", torch.float32),
        ("abscissa", torch.complex128),
        ("norm", torch.float32),
        ("Lyapunov", torch.float64),
        ("Lyapunov-growth", torch.complex128),
    ],
)
def test_the_gradient_belongs_to_the_numbers_of_the_read(kind, dtype) -> None:
    constraint, name = per_matrix(kind)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(5 * torch.randn(2, 6, 6, dtype=dtype))
    sp.constrain(module, "weight", constraint)
    original, constraint = module.parametrizations.weight.original, module.parametrizations.weight[0]
    original.data.mul_(1.1)
    weights = torch.randn(2, 6, 6, dtype=dtype)

    def gradient(W):
        return torch.autograd.grad((weights * W).abs().square().sum(), original)[0]

    clone = copy.deepcopy(module)
    twin = clone.parametrizations.weight.original
    (expected,) = torch.autograd.grad((weights * clone.weight).abs().square().sum(), twin)
    first, again = module.weight, module.weight
    getattr(constraint, name).mul_(3.0)
    for W in (first, again):
        torch.testing.assert_close(gradient(W), expected)
    expected = gradient(module.weight)
    late = module.weight
    getattr(constraint, name).mul_(2.0)
    torch.testing.assert_close(gradient(late), expected)


# What an edit between a read and its second derivative changes, and by how much.
EDITS = {
    **{
        kind: (lambda kind=kind: per_matrix(kind)[0], "numbers") for kind in ("radius", "at_most", "absolute")
    },
    **{kind: (lambda kind=kind: per_matrix(kind)[0], "numbers") for kind in ("tracking", "abscissa", "norm")},
    **{kind: (lambda kind=kind: per_matrix(kind)[0], "numbers") for kind in ("Lyapunov", "Lyapunov-growth")},
    "Householder": (sp.Householder, "signs"),
    "ScaledCayley": (sp.ScaledCayley, "signs"),
    "Givens": (sp.Givens, "signs"),
    "SkewExponential": (sp.SkewExponential, "base"),
    "SchurForm": (lambda: sp.SchurForm(radius=0.9, departure=2.0), "radius"),
    "SingularValues": (lambda: sp.SingularValues(0.5), "margin"),
    "SignPattern": (lambda: sp.SignPattern(torch.ones(6, 6)), "pattern"),
    "diagonal": (lambda: sp.LyapunovForm(0.9, metric="diagonal"), "radius"),
    "gain": (lambda: sp.BoundedGain(1.0, states=3), "gain"),
}


@pytest.mark.parametrize("kind", EDITS)
@pytest.mark.turns(2)
def test_second_derivatives_after_an_edit_are_those_of_the_read(kind) -> None:
    make, what = EDITS[kind]
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(5 * torch.randn(2, 6, 6, dtype=torch.float64))
    sp.constrain(module, "weight", make())
    chain = module.parametrizations.weight
    found, constraint = list(chain.parameters(recurse=False)), chain[0]
    for original in found:
        original.data.mul_(1.1)
    G = torch.randn(2, 6, 6, dtype=torch.float64)

    def second(W, originals):
        first = torch.autograd.grad((G * W).square().sum(), originals, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), originals, allow_unused=True)

    twin = copy.deepcopy(module)
    expected = second(twin.weight, list(twin.parametrizations.weight.parameters(recurse=False)))
    reads = module.weight, module.weight
    name = constraint._bound if what == "numbers" else what
    value = getattr(constraint, name)
    if isinstance(value, torch.Tensor):
        value.data.mul_(-1 if what != "numbers" else 3)
    else:
        setattr(constraint, name, 0.5 * value)
    for W in reads:
        for value, other in zip(second(W, found), expected, strict=True):
            torch.testing.assert_close(value, other)


def test_a_latch_that_stays_open_leaves_earlier_reads_their_gradient() -> None:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(0.1 * torch.randn(2, 5, 5))
    sp.constrain(module, "weight", sp.SpectralRadiusNorm(mode="latched"))
    original = module.parametrizations.weight.original
    for _ in range(2):
        W = module.weight
    original.data.mul_(1.01)
    module.weight  # noqa: B018
    assert torch.equal(torch.autograd.grad(W.sum(), original)[0], torch.ones(2, 5, 5))


class Dropped(sp.ScaledCayley):
    """A constraint whose weight depends on ``training``."""

    depends_on_training = True
    evaluate = sp.Parametrization.evaluate

    def reference(self, T):
        W = super().reference(T)
        return W if self.training else 0.5 * W


@pytest.mark.parametrize("make", [sp.SpectralRadiusNorm, sp.ScaledCayley, Dropped])
def test_a_validation_between_a_read_and_its_backward_pass(make) -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", make())
    original = layer.parametrizations.weight.original
    (expected,) = torch.autograd.grad(layer.weight[0].sum(), original)
    W = layer.weight
    with torch.no_grad():
        torch.testing.assert_close(layer.eval().weight, (0.5 if make is Dropped else 1.0) * W)
    layer.train()
    torch.testing.assert_close(torch.autograd.grad(W[0].sum(), original)[0], expected)
    torch.testing.assert_close(layer.weight, W)


def test_the_last_weight_is_assigned_only_if_the_state_still_gives_it() -> None:
    layer = torch.nn.Linear(8, 8, dtype=torch.complex64)
    sp.constrain(layer, "weight", sp.FourierUnitary(), init="paper")
    W = layer.weight.detach().clone()
    layer.weight = W
    layer.weight = W
    torch.testing.assert_close(layer.weight, W)
    other = torch.nn.Linear(8, 8, dtype=torch.complex64)
    sp.constrain(other, "weight", sp.FourierUnitary(), init="paper")
    layer.load_state_dict(other.state_dict())
    with pytest.raises(sp.errors.InManifoldError):
        layer.weight = W


@pytest.mark.parametrize("make", [sp.SkewExponential, sp.SchurForm])
def test_a_base_that_is_overwritten_during_a_read_is_projected_at_the_next_one(make) -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", make())
    constraint = layer.parametrizations.weight[0]
    evaluate = constraint.evaluate

    def disturbed(*originals):
        found = evaluate(*originals)
        for buffer in constraint.buffers():
            buffer.data.add_(0.5 * torch.rand_like(buffer))
        return found

    constraint.evaluate = disturbed
    next(layer.parametrizations.weight.parameters(recurse=False)).data.add_(0.1)
    W = layer.weight.detach()
    if make is sp.SkewExponential:  # Old, but right.
        torch.testing.assert_close(W @ W.mT, torch.eye(6), atol=1e-5, rtol=0)
    del constraint.evaluate
    fresh = copy.deepcopy(layer)
    torch.testing.assert_close(layer.weight, fresh.weight)


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.SchurForm, sp.SpectralRadiusNorm, sp.Givens])
def test_hooks_on_saved_tensors_see_the_same_of_a_first_and_of_a_second_read(make) -> None:
    """As activation checkpointing asks, which evaluates a segment twice."""
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", make())
    with torch.no_grad():
        for original in layer.parametrizations.weight.parameters(recurse=False):
            original.mul_(1.01)
    saved = []

    def pack(t):
        saved[-1].append(t.shape)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        for _ in range(2):
            saved.append([])
            layer.weight  # noqa: B018
    assert saved == [[], []]


SEVERAL = [
    case
    for case in CASES
    if not case.variant and len(originals(holder(case, case.member((4, 4), case.dtypes[-1])))) > 1
]


@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: case.name)
@pytest.mark.turns(2)
def test_an_original_that_is_frozen_or_released_between_two_reads(case) -> None:
    module = holder(case, case.member((4, 4), case.dtypes[-1]))
    tensors = originals(module)
    with torch.no_grad():
        for t in tensors:
            t.add_(0.01)

    def gradients(W):
        wanted = [t for t in tensors if t.requires_grad]
        found = dict(zip(map(id, wanted), torch.autograd.grad(loss(W), wanted), strict=True))
        return [found.get(id(t)) for t in tensors]

    def loss(W):
        return (W * torch.linspace(-1, 1, W.numel(), dtype=W.dtype).reshape(W.shape)).abs().square().sum()

    expected = gradients(module.weight)
    for frozen in tensors:
        with torch.no_grad():
            tensors[0].add_(0)  # The first read of each kind.
        frozen.requires_grad_(False)
        first = module.weight
        frozen.requires_grad_(True)
        released = module.weight
        frozen.requires_grad_(False)
        again = module.weight
        for W in (first, again):
            for t, found, wanted in zip(tensors, gradients(W), expected, strict=True):
                assert t is frozen or torch.allclose(found, wanted)
        frozen.requires_grad_(True)
        for found, wanted in zip(gradients(released), expected, strict=True):
            torch.testing.assert_close(found, wanted)


EVALUATIONS: list[Tensor] = []


class Half(sp.Parametrization):
    """Half of the original; each evaluation is counted."""

    def reference(self, T: Tensor) -> Tensor:
        EVALUATIONS.append(T)
        return T / 2

    def invert(self, W: Tensor) -> Tensor:
        return 2 * W

    def start(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def free_parameters(self, T: Tensor) -> int:
        return T.numel()


def test_a_constraint_is_evaluated_once_for_each_change_and_once_for_each_later_backward_pass() -> None:
    module = sp.constrain(sp.testing.Holder(torch.randn(3, 3)), "weight", Half())
    original = module.parametrizations.weight.original
    EVALUATIONS.clear()
    first, second, third = module.weight, module.weight, module.weight
    assert len(EVALUATIONS) <= 1  # Registration may have read it.
    EVALUATIONS.clear()
    (first.sum() + second.sum() + third.sum()).backward()
    assert len(EVALUATIONS) <= 3
    torch.testing.assert_close(original.grad, torch.full((3, 3), 1.5))
    for _ in range(2):
        EVALUATIONS.clear()
        with torch.no_grad():
            original.add_(1)
        for _ in range(5):
            module.weight  # noqa: B018
        assert len(EVALUATIONS) == 1
