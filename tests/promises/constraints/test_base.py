"""What every parametrization of the library refuses before anything changes, and its copies."""

import contextlib
import copy
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

import spectral_param as sp
from spectral_param.testing import Holder, holder
from tests.promises.cases import CASES, make_blocks, orthogonal, with_radius

KINDS = {
    "ScaledCayley": (lambda shape: sp.ScaledCayley(), orthogonal),
    "SpectralRadiusNorm": (
        lambda shape: sp.SpectralRadiusNorm(mode="latched"),
        lambda shape, dtype: with_radius(shape, dtype, 0.9),
    ),
    "BlockTriangular": (make_blocks, lambda shape, dtype: torch.eye(shape[-1], dtype=dtype)),
}


def constrained(name, weight):
    module = Holder(weight.clone())
    gates = weight.shape[-2] // weight.shape[-1]
    return sp.constrain(module, "weight", KINDS[name][0](tuple(weight.shape)), gates=gates)


@pytest.mark.parametrize("name", KINDS)
def test_assignment_of_another_dtype(name) -> None:
    module = constrained(name, torch.randn(4, 4))
    before = module.weight.detach().clone()
    with pytest.raises(ValueError, match=r"expected.*float32.*got torch\.float64"):
        module.weight = KINDS[name][1]((4, 4), torch.float64)
    assert torch.equal(module.weight, before)
    module.double()  # and from here on, read or not, it is a float64 weight
    module.weight = KINDS[name][1]((4, 4), torch.float64)
    before = module.weight.detach().clone()
    with pytest.raises(ValueError, match=r"expected.*float64.*got torch\.float32"):
        module.weight = KINDS[name][1]((4, 4), torch.float32)
    assert torch.equal(module.weight, before)


def test_assignment_to_a_converted_complex_weight() -> None:
    for convert in (lambda m: m.to(torch.complex128), lambda m: m.double()):
        module = constrained("ScaledCayley", torch.eye(4, dtype=torch.complex64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            convert(module)
        W = orthogonal((4, 4), module.weight.dtype)
        module.weight = W
        torch.testing.assert_close(module.weight, W)


@pytest.mark.parametrize("name", KINDS)
def test_assignment_of_another_shape(name) -> None:
    module = constrained(name, torch.randn(16, 4))
    before = module.weight.detach().clone()
    with pytest.raises(ValueError, match=r"expected.*\(16, 4\), got \(4, 4\)"):
        module.weight = KINDS[name][1]((4, 4), torch.float32)
    assert torch.equal(module.weight, before)


@pytest.mark.parametrize("name", KINDS)
def test_meta_device_then_materialised_and_restarted(name) -> None:
    module = constrained(name, torch.empty(4, 4, device="meta"))
    assert module.weight.shape == (4, 4)
    assert all(t.is_meta for t in (*module.parameters(), *module.buffers()))
    module.to_empty(device="cpu")
    weight = module.parametrizations.weight
    weight[0].restart(*weight.parameters(recurse=False))
    assert module.weight.isfinite().all()
    assert weight[0].in_manifold(module.weight)
    fresh = constrained(name, torch.eye(4))
    module.load_state_dict(fresh.state_dict())
    assert torch.equal(module.weight, fresh.weight)


@pytest.mark.parametrize("name", KINDS)
def test_after_to_empty_a_restart_or_a_checkpoint_gives_values(name) -> None:
    with torch.device("meta"):
        layer = torch.nn.Linear(4, 4)
    register_parametrization(layer, "weight", KINDS[name][0]((4, 4)))
    layer.to_empty(device="cpu")
    links = layer.parametrizations.weight
    links[0].restart(*links.parameters(recurse=False))
    assert links[0].in_manifold(layer.weight)
    layer.to("meta").to_empty(device="cpu")
    trained = sp.constrain(torch.nn.Linear(4, 4), "weight", KINDS[name][0]((4, 4)))
    layer.load_state_dict(trained.state_dict())
    assert torch.equal(layer.weight, trained.weight)


def cases(shape):
    for case in CASES:
        yield case.make(shape), case.member(shape, case.dtypes[0]), case.init
    yield sp.SpectralRadiusNorm("present"), torch.randn(shape), None
    yield sp.SpectralAbscissa("present"), torch.randn(shape), None


@pytest.mark.parametrize("n", [4, 100])
def test_meta_device_then_loaded(n) -> None:
    large = [(sp.SpectralRadiusNorm(), torch.randn(n, n), None)]
    for constraint, member, init in cases((n, n)) if n == 4 else large:
        with torch.device("meta"):
            module = Holder(torch.empty(n, n, dtype=member.dtype))
        sp.constrain(module, "weight", constraint)
        trained = sp.constrain(Holder(member), "weight", constraint, init=init)
        expected = trained.weight.detach()
        module.load_state_dict(trained.state_dict(), assign=True)
        # A radius that is followed is found anew, and differs by rounding.
        rtol = n * torch.finfo(member.dtype).eps if n > 4 else 0.0
        torch.testing.assert_close(module.weight.detach(), expected, rtol=rtol, atol=0.0)
        assert not any(t.is_meta for t in (*module.parameters(), *module.state_dict().values()))
        module.weight.abs().sum().backward()


@pytest.mark.parametrize(
    ("name", "start"), [("ScaledCayley", "meta"), ("SpectralRadiusNorm", "cpu"), ("BlockTriangular", "meta")]
)
def test_tensors_in_place_of_the_registered_ones_tell_device_and_dtype(name, start) -> None:
    trained = constrained(name, torch.eye(4, dtype=torch.float64))

    def loaded():
        module = constrained(name, torch.empty(4, 4, device=start).fill_(1.0))
        module.load_state_dict(trained.state_dict(), assign=True)
        return module

    loaded().to("cpu")  # Read or not.
    module = loaded()
    assert module.weight.dtype == module.parametrizations.weight[0].dtype == torch.float64
    assert not any(t.is_meta for t in module.buffers())
    module.weight = W = KINDS[name][1]((4, 4), torch.float64)
    torch.testing.assert_close(module.weight, W)
    module = loaded()
    links = module.parametrizations.weight
    links[0].restart(*links.parameters(recurse=False))
    assert links[0].in_manifold(module.weight)


def no_values(t):
    return t.is_meta or isinstance(t, FakeTensor)


@pytest.mark.parametrize(
    "name", ["ScaledCayley", "Givens", "SchurForm-bounded", "BlockTriangular", "Householder"]
)
def test_a_module_that_is_filled_tensor_by_tensor_can_be_moved(name) -> None:
    """As accelerate's loaders do."""
    (case,) = (case for case in CASES if case.name == name)
    for dtype in (case.dtypes[0], case.dtypes[-1]):
        with torch.device("meta"):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4, dtype=dtype))
        sp.constrain(model, "0.weight", case.make((4, 4)))
        source = torch.nn.Sequential(torch.nn.Linear(4, 4, dtype=dtype))
        sp.constrain(source, "0.weight", case.make((4, 4)))
        for key, t in source.state_dict().items():
            owner, _, leaf = key.rpartition(".")
            owner = model.get_submodule(owner)
            setattr(owner, leaf, torch.nn.Parameter(t) if leaf in owner._parameters else t)
        model.to("cpu")
        assert torch.equal(model[0].weight, source[0].weight)
        assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))


@pytest.mark.nightly
def test_fake_tensors_as_on_the_meta_device() -> None:
    """Building a model under FakeTensorMode tells its shapes and takes no memory."""
    # A variant does the same with tensors; SignPattern takes a pattern.
    made = [(case.make, case.dtypes[0]) for case in CASES if not case.variant and case.name != "SignPattern"]
    made.append((lambda shape: [sp.ScaledCayley(), sp.SpectralRadiusNorm("present")], torch.float32))
    made.append((lambda shape: sp.SpectralAbscissa("present"), torch.float32))
    for make, dtype in made:
        with FakeTensorMode():
            layer = sp.constrain(torch.nn.Linear(6, 6, dtype=dtype), "weight", make((6, 6)))
            output = layer(torch.randn(3, 6, dtype=dtype))
            output.abs().sum().backward()
            assert output.shape == (3, 6)
        everything = (*layer.parameters(), *layer.buffers())
        assert all(isinstance(t, FakeTensor) for t in everything)
        assert all(t.grad is not None for t in layer.parameters())


@pytest.mark.nightly
def test_a_start_without_values() -> None:
    """restart and sample tell shapes, too."""
    few = ("ScaledCayley", "SpectralRadiusNorm", "SpectralNorm", "BlockTriangular")
    for mode, device in ((contextlib.nullcontext(), "meta"), (FakeTensorMode(), "cpu")):
        for case in CASES:
            if case.variant or case.name == "SignPattern":  # Takes a pattern.
                continue
            if device == "cpu" and case.name not in few:
                continue
            with mode:
                module = Holder(torch.empty(4, 4, dtype=case.dtypes[0], device=device))
                links = sp.constrain(module, "weight", case.make((4, 4))).parametrizations.weight
                links[0].restart(*links.parameters(recurse=False))
                assert no_values(links[0].sample())
                assert no_values(module.weight)


@pytest.mark.nightly
def test_present_bounds_of_gates_under_fake_tensors() -> None:
    for make in (sp.SpectralRadiusNorm, sp.SpectralAbscissa, sp.SpectralNorm, sp.LyapunovForm):
        with FakeTensorMode():
            lstm = sp.constrain(torch.nn.LSTM(3, 6), "weight_hh_l0", make("present"))
            output, _ = lstm(torch.randn(5, 2, 3))
            assert isinstance(lstm.parametrizations.weight_hh_l0[0].sample(), FakeTensor)
        assert output.shape == (5, 2, 6)


@pytest.mark.parametrize("n", [6, 120])
@pytest.mark.turns(2)
def test_networks_of_fake_tensors(n) -> None:
    with FakeTensorMode():
        network = sp.nn.ENRNN(2, n, 4)
        output, _ = network(torch.randn(5, 3, 2))
        output.sum().backward()
    assert output.shape == (5, 3, n + 4)


@pytest.mark.parametrize("name", ["ScaledCayley", "SpectralRadiusNorm"])
def test_views_that_are_conjugated_or_negated_lazily(name) -> None:
    Z = torch.randn(4, 4, dtype=torch.complex128)
    module = Holder(torch.empty(0))
    for view in (Z.mH, Z.conj().imag):
        module.weight = torch.nn.Parameter(view)
        with pytest.raises(ValueError, match=r"expected.*got"):
            register_parametrization(module, "weight", KINDS[name][0]((4, 4)))
    # Later they are welcome: values are assigned, not the tensor.
    module = constrained(name, orthogonal((4, 4), Z.dtype))
    module.weight = W = orthogonal((4, 4), Z.dtype).mH
    torch.testing.assert_close(module.weight, W)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_weight_can_be_assigned_to_itself(name, dtype) -> None:
    module = constrained(name, torch.randn(8, 8).to(dtype))
    W = module.weight.detach().clone()
    module.weight = W
    torch.testing.assert_close(module.weight, W, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.SkewExponential, sp.Householder])
def test_assignment_of_a_weight_whose_square_overflows(make) -> None:
    module = Holder(torch.randn(6, 6))
    register_parametrization(module, "weight", make())
    before = module.weight.detach().clone()
    with pytest.raises(sp.errors.InManifoldError, match=r"expected.*got"):
        module.weight = 1e20 * torch.randn(6, 6)
    assert torch.equal(module.weight, before)


OPERATORS = {
    "Householder": (lambda: sp.Householder(3), torch.bfloat16),
    "Householder, complex": (lambda: sp.Householder(3), torch.complex64),
    "Givens": (lambda: sp.Givens(), torch.bfloat16),
    "Givens, complex": (lambda: sp.Givens(), torch.complex64),
    "FourierUnitary": (lambda: sp.FourierUnitary(), torch.complex64),
}


@pytest.mark.parametrize("rows", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("make", "dtype"), OPERATORS.values(), ids=OPERATORS)
def test_operators_take_half_precision_and_real_rows(make, dtype, rows) -> None:
    module = sp.constrain(Holder(torch.empty(8, 8, dtype=dtype)), "weight", make(), init="paper")
    of_weight = module.parametrizations.weight
    h = torch.randn(3, 8, dtype=rows)
    actual = of_weight[0].operator(*of_weight.parameters(recurse=False))(h)
    assert actual.dtype == (torch.complex64 if dtype.is_complex else rows)
    W = module.weight.detach().to(torch.complex64 if dtype.is_complex else torch.float32)
    torch.testing.assert_close(actual.to(W.dtype), h.to(W.dtype) @ W.mT, atol=0.1, rtol=0)


COPIED = {
    "torch.nn.RNN": (
        lambda: sp.constrain(torch.nn.RNN(3, 8), "weight_hh_l0", sp.ScaledCayley()),
        "weight_hh_l0",
    ),
    "torch.nn.LSTM": (
        lambda: sp.constrain(torch.nn.LSTM(3, 8), "weight_hh_l0", sp.SpectralRadiusNorm()),
        "weight_hh_l0",
    ),
    "ScoRNN": (lambda: sp.nn.ScoRNN(3, 8), "weight_hh"),
    "Linear": (
        lambda: torch.nn.Sequential(sp.constrain(torch.nn.Linear(3, 3), "weight", sp.ScaledCayley())),
        "weight",
    ),
}


def output(module, x):
    y = module(x)
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("name", COPIED)
def test_a_copy_without_its_constraint_leaves_the_original_alone(name) -> None:
    make, tensor = COPIED[name]
    module, x = make(), torch.randn(5, 2, 3)
    with torch.no_grad():
        before = output(module, x)
    other = copy.deepcopy(copy.deepcopy(module))
    for part in other.modules():
        if parametrize.is_parametrized(part):
            remove_parametrizations(part, tensor)
    torch.testing.assert_close(output(other, x), before)
    output(module, x).square().sum().backward()
    originals = [p for key, p in module.named_parameters() if "original" in key]
    assert originals
    with torch.no_grad():
        for original in originals:
            assert original.grad.abs().max() > 0
            original += torch.randn_like(original)
    assert not torch.equal(output(module, x), before)
    torch.testing.assert_close(output(other, x), before)


def test_a_copy_has_a_cached_weight_of_its_own() -> None:
    module = sp.constrain(torch.nn.Linear(4, 4), "weight", sp.ScaledCayley())
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.parametrizations.weight.original += torch.randn(4, 4)
    expected = other.weight.detach().clone()
    with parametrize.cached():
        assert not torch.equal(module.weight, expected)
        assert torch.equal(other.weight, expected)


@pytest.mark.parametrize(
    "make",
    [sp.ScaledCayley, sp.SpectralAbscissa, lambda: sp.SpectralNorm(1.0), lambda: sp.LyapunovForm(radius=1.0)],
    ids=["ScaledCayley", "SpectralAbscissa", "SpectralNorm", "LyapunovForm"],
)
def test_a_registration_where_meta_is_the_default_device(make) -> None:
    with torch.device("meta"):
        layer = sp.constrain(torch.nn.Linear(4, 4), "weight", make())
    layer.to_empty(device="cpu")
    links = layer.parametrizations.weight
    links[0].restart(*links.parameters(recurse=False))
    assert links[0].in_manifold(layer.weight.detach())


@pytest.mark.parametrize("shape", [(), (1,), (4,), (0,)])
@pytest.mark.parametrize("module", [torch.nn.Linear, torch.nn.LSTM])
def test_a_saved_bound_has_the_shape_of_the_matrices(module, shape) -> None:
    layer = module(4, 4)
    name = "weight" if module is torch.nn.Linear else "weight_hh_l0"
    sp.constrain(layer, name, sp.SpectralNorm("present"))
    state = {**layer.state_dict(), f"parametrizations.{name}.0.norm": torch.ones(shape)}
    if shape == () or (shape == (4,) and module is torch.nn.LSTM):
        layer.load_state_dict(state)
        return
    with pytest.raises(RuntimeError, match=r"norm: expected.*got"):
        layer.load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "name", "bad"),
    [
        (sp.SpectralRadiusNorm, "radius", torch.nan),
        (sp.SpectralRadiusNorm, "radius", -0.5),
        (sp.SpectralNorm, "norm", torch.inf),
        (sp.SpectralNorm, "norm", 0.0),
        (sp.LyapunovForm, "radius", 0.0),
        (sp.SpectralAbscissa, "abscissa", torch.nan),
        (sp.SpectralAbscissa, "abscissa", -0.5),
        (lambda bound: sp.LyapunovForm(abscissa=bound), "abscissa", torch.inf),
        (lambda bound: sp.LyapunovForm(abscissa=bound), "abscissa", 0.0),
    ],
)
def test_a_saved_bound_that_is_none_is_not_loaded(make, name, bad) -> None:
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", make("present"))
    expected, key = layer.weight.detach().clone(), f"parametrizations.weight.0.{name}"
    state = {**layer.state_dict(), key: torch.tensor(bad)}
    if name == "abscissa" and bad in (0.0, -0.5):
        layer.load_state_dict(state)
        assert getattr(layer.parametrizations.weight[0], name) == bad
        return
    with pytest.raises(RuntimeError, match=rf"{key}: expected.*got {bad}"):
        layer.load_state_dict(state)
    torch.testing.assert_close(layer.weight, expected)


@pytest.mark.parametrize("case", [c for c in CASES if torch.float64 in c.dtypes], ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_a_real_weight_does_not_become_complex_by_a_conversion(case) -> None:
    module = holder(case, case.member((5, 5), torch.float64))
    before = module.weight.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's, that complex modules are new.
        with pytest.raises(sp.errors.UnsupportedDtypeError, match="keeps the real weight real"):
            module.to(torch.complex128)
        assert torch.equal(module.weight, before)
        # The remedies.
        module.float().double()
        sp.remove(module).to(torch.complex128)
    torch.testing.assert_close(module.weight.detach(), before.to(torch.complex128), atol=1e-5, rtol=1e-5)


def test_a_new_reference_beside_an_inherited_evaluation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"(?s)expected evaluate.*got.*evaluate = spectral_param.Param"):

        class Doubled(sp.ScaledCayley):
            def reference(self, T):
                return 2 * super().reference(T)


def test_the_remedy_for_a_new_reference_works() -> None:
    class Doubled(sp.ScaledCayley):
        evaluate = sp.Parametrization.evaluate

        def reference(self, T):
            return 2 * super().reference(T)

    class Tripled(Doubled):  # What is inherited differentiates the reference, whichever it is.
        def reference(self, T):
            return 1.5 * super().reference(T)

    for make, size in ((Doubled, 2.0), (Tripled, 3.0)):
        module = torch.nn.Linear(4, 4)
        torch.nn.utils.parametrize.register_parametrization(module, "weight", make(), unsafe=True)
        assert torch.linalg.matrix_norm(module.weight, 2).item() == pytest.approx(size)


class Squared(sp.Parametrization):
    """Entries of at least 0, with a pull-back of its own."""

    shapes = "any"

    def reference(self, T):
        return T * T

    def evaluate(self, T):
        return sp.Map(T * T, lambda G, needed: (2 * T * G,), self.reference)

    def invert(self, W):
        return W.clamp(min=0).sqrt()

    def start(self, like):
        return torch.rand_like(like)

    def free_parameters(self, T):
        return T.numel()


def test_a_map_of_ones_own_has_its_gradient_and_the_second_one() -> None:
    layer = sp.constrain(torch.nn.Linear(3, 2, bias=False, dtype=torch.float64), "weight", Squared())
    T = layer.parametrizations.weight.original
    T.data.uniform_(1, 2)
    (first,) = torch.autograd.grad(layer.weight.sum(), T)
    torch.testing.assert_close(first, 2 * T.detach())
    (once,) = torch.autograd.grad(layer.weight.square().sum(), T, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(once.sum(), T)[0], 12 * T.detach().square())


class Cubed(sp.Parametrization):
    """W = T³, without the methods that a test adds."""

    def reference(self, T: torch.Tensor) -> torch.Tensor:
        return T**3


class Unsolved(Cubed):
    def invert(self, W: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("cube roots of these")


@pytest.mark.parametrize(
    ("kind", "init", "match"),
    [
        (Cubed, None, r"Cubed\.invert: .*Write invert\(W\) in Cubed"),
        (Cubed, torch.ones(2, 2), r"Cubed\.invert"),
        (Cubed, "paper", r"Cubed\.start: .*Write start\(like\) in Cubed"),
        (Unsolved, None, r"Unsolved: .*cube roots of these"),
    ],
)
def test_a_method_that_is_missing_or_not_implemented_is_named(kind, init, match) -> None:
    """PyTorch ignores a NotImplementedError at registration: the weight would be another one."""
    layer = torch.nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=match) as refused:
        sp.constrain(layer, "weight", kind(), init=init)
    assert isinstance(refused.value.__cause__, NotImplementedError)
    assert torch.equal(layer.weight, before)


def test_the_method_that_is_named_is_enough() -> None:
    class Solved(Cubed):
        def invert(self, W: torch.Tensor) -> torch.Tensor:
            return W.sign() * W.abs() ** (1 / 3)

    layer = torch.nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    torch.testing.assert_close(sp.constrain(layer, "weight", Solved()).weight, before)
    with pytest.raises(NotImplementedError, match=r"Write free_parameters"):
        sp.num_free_parameters(layer)
