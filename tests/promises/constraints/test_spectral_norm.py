"""SpectralNorm: the bound after every step, convolutions for images of every size, and what a read keeps."""

import copy
import io
import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel

import spectral_param as sp
from spectral_param.errors import DegenerateEigenvalueWarning, InManifoldError, NotFiniteError
from spectral_param.testing import Holder
from tests.promises.cases import orthogonal
from tests.properties import examples, seeds

SINGLE = 2e-6  # The bound and rounding, in single precision.


def norm(W):
    """Return the largest singular value in double precision."""
    return torch.linalg.svdvals(W.detach().to(torch.complex128 if W.is_complex() else torch.float64))[..., 0]


def constrained(W, *args, **kwargs):
    return sp.constrain(Holder(W.clone()), "weight", sp.SpectralNorm(*args, **kwargs))


def layer_norm(conv, *size):
    """Return the norm of a convolution without bias on images of this size, from its matrix."""
    inputs = torch.eye(conv.in_channels * torch.tensor(size).prod().item(), dtype=conv.weight.dtype)
    with torch.no_grad():
        return norm(conv(inputs.reshape(-1, conv.in_channels, *size)).flatten(1)).item()


def power_norm(conv, size, steps=60):
    """Return the norm from below, by power steps: for images that are too large for a matrix."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, conv.in_channels, size, size, generator=generator)
    W = conv.weight.detach()

    def layer(x):
        return nn.functional.conv2d(x, W, None, conv.stride, conv.padding, conv.dilation, conv.groups)

    for _ in range(steps):
        x = (x / x.norm()).requires_grad_()
        y = layer(x)
        (x,) = torch.autograd.grad(y.square().sum() / 2, x)
    return (layer(x).norm() / x.norm()).item()


# Matrices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "mode"),
    [((128, 128), "at_most"), ((100, 200), "equal"), ((200, 100), "at_most"), ((5, 5), "equal")],
)
@pytest.mark.turns(2)
def test_bound_over_100_steps_of_adam(shape, mode) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(shape[1], shape[0], bias=False)
    nn.init.normal_(layer.weight, std=0.5)
    sp.constrain(layer, "weight", sp.SpectralNorm(1.5, mode=mode))
    optimizer = torch.optim.Adam(layer.parameters(), lr=2e-3)
    x, y = torch.randn(16, shape[1]), torch.randn(16, shape[0])
    sizes = []
    for _ in range(100):
        optimizer.zero_grad()
        (layer(x) - y).square().mean().backward()
        optimizer.step()
        G = layer.weight.detach().double()
        G = G.mT @ G if shape[0] >= shape[1] else G @ G.mT
        sizes.append(torch.linalg.eigvalsh(G)[-1].sqrt())
    excess = torch.stack(sizes) / 1.5 - 1
    assert excess.max() <= SINGLE
    if mode == "equal":
        assert excess.abs().max() <= SINGLE
    elif shape != (5, 5):
        assert excess.max() > -1e-2  # The bound was reached, so it was tested.


def with_spectrum(m, n, sigma, seed=0):
    generator = torch.Generator().manual_seed(seed)
    U = torch.linalg.qr(torch.randn(m, n, dtype=torch.float64, generator=generator)).Q
    V = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q
    return (U * torch.as_tensor(sigma, dtype=torch.float64)) @ V.mT


ADVERSARIAL = {
    "plateau": torch.ones(120),
    "plateau of forty": torch.cat([torch.ones(40), torch.linspace(0.99, 0, 80)]),
    "pair": torch.cat([torch.ones(2), torch.linspace(0.9, 0, 118)]),
    "rank one": torch.cat([torch.ones(1), torch.zeros(119)]),
    "crowded": 1 - torch.arange(120.0) * 1e-7,
    "decaying": 10.0 ** -torch.arange(120.0),
    "outlier": torch.cat([torch.full((1,), 1e6), torch.rand(119)]),
}


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("name", "dtype", "scale"),
    [
        (name, (torch.float32, torch.float64)[i % 2], scale)
        for i, (name, scale) in enumerate(
            zip((*ADVERSARIAL, *ADVERSARIAL), itertools.cycle((1e-30, 1.0, 1e18)), strict=False)
        )
    ],
)
@pytest.mark.turns(2)
def test_adversarial_spectra_along_a_path(name, dtype, scale) -> None:
    """The matrices move a little, and then all at once."""
    W = with_spectrum(150, 120, ADVERSARIAL[name])
    layer = constrained((W * scale).to(dtype), 0.3 * scale, mode="equal")
    original = layer.parametrizations.weight.original
    for step in range(6):
        with torch.no_grad():
            target = W if step < 4 else with_spectrum(150, 120, ADVERSARIAL[name].flip(0), seed=step)
            noise = torch.randn(150, 120, generator=torch.Generator().manual_seed(step))
            original.copy_((target + 1e-4 * noise) * scale)
        excess = norm(layer.weight / scale) / 0.3 - 1
        assert excess.abs() <= (SINGLE if dtype == torch.float32 else 2e-10)


@pytest.mark.parametrize("shape", [(130, 100), (100, 130), (20, 30)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_at_most_leaves_a_smaller_weight_bit_for_bit(shape, dtype) -> None:
    W = torch.randn(shape, dtype=dtype)
    W = W / norm(W)
    layer = constrained(W, 1.0 + 1e-5)
    assert torch.equal(layer.weight, W)
    assert norm(constrained(W, 0.999).weight) <= 0.999 * (1 + SINGLE)


def test_batches_and_gates_have_one_bound_each() -> None:
    W = torch.randn(3, 5, 8) * torch.tensor([0.1, 1.0, 10.0])[:, None, None]
    expected = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    layer = sp.constrain(Holder(W), "weight", sp.SpectralNorm(expected, mode="equal"))
    torch.testing.assert_close(norm(layer.weight), expected, rtol=1e-6, atol=0)
    lstm = sp.constrain(nn.LSTM(100, 100), "weight_*", sp.SpectralNorm(0.4, mode="equal"))
    for name in ("weight_hh_l0", "weight_ih_l0"):
        gates = getattr(lstm, name).unflatten(0, (4, 100))
        torch.testing.assert_close(norm(gates), torch.full((4,), 0.4).double(), rtol=1e-6, atol=0)


def test_present_keeps_the_norm_of_each_and_its_checkpoint() -> None:
    layer = sp.constrain(nn.Linear(8, 5), "weight", sp.SpectralNorm("present"))
    before = layer.weight.detach().clone()
    other = sp.constrain(nn.Linear(8, 5), "weight", sp.SpectralNorm("present"))
    assert norm(other.weight) != norm(layer.weight)
    other.load_state_dict(layer.state_dict())
    for each in (layer, other):
        with torch.no_grad():
            each.parametrizations.weight.original.mul_(3)
        torch.testing.assert_close(each.weight, before)


def test_derivatives_at_ties_are_defined() -> None:
    """The gradient is that of one leading pair, and the second derivative is finite."""
    T = torch.eye(6, dtype=torch.float64).requires_grad_()
    layer = sp.SpectralNorm(0.5, mode="equal")
    holder = sp.constrain(Holder(torch.eye(6, dtype=torch.float64)), "weight", layer)
    constraint = holder.parametrizations.weight[0]
    W = constraint(T)
    G = torch.randn(6, 6, dtype=torch.float64)
    (g,) = torch.autograd.grad(W, T, G, create_graph=True)
    # 0.5 (G - <T, G> u vᵀ) for σ = 1 and some u = v.
    rest = (0.5 * G - g.detach()) / (0.5 * G.trace())
    sigma = torch.linalg.svdvals(rest)
    assert abs(sigma[0] - 1) < 1e-12
    assert sigma[1] < 1e-12
    torch.testing.assert_close(rest, rest.mT)
    (second,) = torch.autograd.grad(g, T, torch.randn(6, 6, dtype=torch.float64))
    assert second.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("solver", ["dense", "tracking"])
def test_derivatives_of_both_solvers_agree_with_autograd_of_svdvals(solver, dtype) -> None:
    """First and second order, for a weight that is tracked and one that is not."""
    torch.manual_seed(0)
    W = torch.randn(40, 30, dtype=dtype)
    layer = constrained(W, 0.5, mode="equal", solver=solver)
    T = layer.parametrizations.weight.original
    G = torch.randn_like(W)
    reference = T.detach().clone().requires_grad_()
    ours, theirs = [], []
    for X, weight, found in (
        (T, layer.weight, ours),
        (reference, 0.5 * reference / torch.linalg.svdvals(reference)[0], theirs),
    ):
        (g,) = torch.autograd.grad((weight * G).abs().square().sum(), X, create_graph=True)
        (second,) = torch.autograd.grad((g * G.flip(0)).abs().square().sum(), X)
        found += [weight, g, second]
    for a, b in zip(ours, theirs, strict=True):
        # The vectors of a norm that is followed are known to about the root of 1e-10.
        torch.testing.assert_close(a, b, rtol=1e-4 if solver == "tracking" else 1e-10, atol=1e-4)


def test_zero_stays_zero_with_a_warning_only_where_the_norm_is_asked_for() -> None:
    assert not constrained(torch.zeros(5, 3)).weight.any()
    with pytest.warns(DegenerateEigenvalueWarning, match="norm"):
        layer = constrained(torch.zeros(5, 3), mode="equal")
    W = layer.weight
    (g,) = torch.autograd.grad(W.sum(), layer.parametrizations.weight.original)
    assert not W.any()
    assert torch.equal(g, torch.ones(5, 3))


@pytest.mark.parametrize("shape", [(5, 3), (100, 120)])
def test_nan_and_infinity_are_passed_on_and_leave_no_trace(shape) -> None:
    for value in (torch.nan, torch.inf):
        layer = constrained(torch.randn(shape))
        before = layer.parametrizations.weight.original.detach().clone()
        with torch.no_grad():
            layer.parametrizations.weight.original[1, 2] = value
        W = layer.weight
        (g,) = torch.autograd.grad(W.sum(), layer.parametrizations.weight.original)
        assert W.isnan().any()
        assert g.isnan().any()
        with torch.no_grad():  # And back.
            layer.parametrizations.weight.original.copy_(before)
        assert norm(layer.weight) <= 1 + SINGLE


def test_nan_inside_transforms_leaves_the_other_matrices() -> None:
    T = torch.randn(2, 4, 3)
    T[0, 1, 2] = torch.nan
    layer = sp.SpectralNorm()
    W = torch.func.vmap(layer)(T)
    assert W[0].isnan().all()
    torch.testing.assert_close(W[1], layer(T[1]))
    W, tangent = torch.func.jvp(layer, (T,), (torch.ones_like(T),))
    assert not W[1].isnan().any()
    assert not tangent[1].isnan().any()


@pytest.mark.parametrize("n", [20, 130])
def test_resumes_and_takes_the_weight_of_any_checkpoint(n) -> None:
    def trained(layer, steps):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for t in steps:
            optimizer.zero_grad()
            x = torch.randn(8, n, generator=torch.Generator().manual_seed(t))
            (layer(x) - x).square().mean().backward()
            optimizer.step()
        return layer

    torch.manual_seed(0)
    layer = trained(sp.constrain(nn.Linear(n, n), "weight", sp.SpectralNorm(0.5)), range(3))
    for read in (False, True):
        if read:
            layer(torch.zeros(1, n))
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        restored = sp.constrain(nn.Linear(n, n), "weight", sp.SpectralNorm(0.5))
        restored.load_state_dict(torch.load(file))
        expected = trained(copy.deepcopy(layer), range(3, 6))
        torch.testing.assert_close(trained(restored, range(3, 6)).weight, expected.weight, atol=1e-5, rtol=0)
    state = layer.state_dict()
    name = "parametrizations.weight.original"
    restored.load_state_dict(state | {name: 5 * state[name]})
    assert norm(restored.weight) <= 0.5 * (1 + SINGLE)
    # A checkpoint of the weight alone.
    restored.load_state_dict({name: state[name], "bias": state["bias"]}, strict=False)
    assert norm(restored.weight) <= 0.5 * (1 + SINGLE)


@pytest.mark.parametrize("n", [12, 130])
def test_an_averaged_model_keeps_its_bound(n) -> None:
    model = sp.constrain(nn.Linear(n, n), "weight", sp.SpectralNorm(0.8, mode="equal"))
    averaged = AveragedModel(model, use_buffers=True)
    for _ in range(4):
        with torch.no_grad():
            model.parametrizations.weight.original.normal_()
        model(torch.zeros(1, n))
        averaged.update_parameters(model)
    W = averaged.module.weight
    assert abs(norm(W) / 0.8 - 1) <= SINGLE
    half = copy.deepcopy(model).half()
    assert half.weight.dtype == torch.float16
    assert abs(norm(half.float().weight) / 0.8 - 1) <= SINGLE


# Convolutions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e170, 1e300])
def test_the_size_of_a_kernel_does_not_matter(scale) -> None:
    conv = nn.Conv2d(4, 6, 3, groups=2, stride=2, bias=False, dtype=torch.float64)
    sp.constrain(conv, "weight", sp.SpectralNorm(0.5, mode="equal"))
    original = conv.parametrizations.weight.original
    expected = conv.weight.detach()
    with torch.no_grad():
        original.mul_(scale)
    torch.testing.assert_close(conv.weight.detach(), expected)


KINDS = {
    1: (nn.Conv1d, nn.ConvTranspose1d, (7, 24)),
    2: (nn.Conv2d, nn.ConvTranspose2d, ((4, 5), (12, 12))),
    3: (nn.Conv3d, nn.ConvTranspose3d, ((3, 3, 4), (5, 5, 5))),
}
OPTIONS = (
    {},
    {"padding": 1},
    {"padding": "same"},
    {"padding": 3},
    {"stride": 2, "padding": 1},
    {"stride": 3},
    {"stride": 2, "dilation": 2},
    {"stride": 3, "dilation": 2, "padding": 2},
    {"dilation": 2},
    {"groups": 2, "padding": 1},
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": 1, "stride": 2},
    {"padding": 1, "padding_mode": "circular"},
    {"padding": 1, "padding_mode": "circular", "stride": 2},
    {"padding": "same", "padding_mode": "circular", "kernel_size": 2},
)


@example(axes=2, options={"padding": 1}, mode="equal", seed=0)
@example(axes=1, options={"stride": 2, "dilation": 2}, mode="equal", seed=0)
@example(axes=1, options={"stride": 3, "dilation": 2, "padding": 2}, mode="equal", seed=0)
@example(axes=3, options={"padding": "same"}, mode="at_most", seed=0)
@example(axes=2, options={"padding": 1, "padding_mode": "circular", "stride": 2}, mode="equal", seed=0)
@given(
    axes=st.sampled_from(tuple(KINDS)),
    options=st.sampled_from(OPTIONS),
    mode=st.sampled_from(["equal", "at_most"]),
    seed=seeds,
)
@examples(20)
def test_the_norm_of_a_layer_for_images_of_several_sizes(axes, options, mode, seed) -> None:
    kind, _, sizes = KINDS[axes]
    torch.manual_seed(seed)
    options = {"kernel_size": 3, "bias": False, "dtype": torch.float64} | options
    conv = kind(2, 4, **options)
    sp.constrain(conv, "weight", sp.SpectralNorm(0.3, mode=mode))
    for size in sizes:
        size = size if isinstance(size, tuple) else (size,)
        if min(size) + 2 * (options.get("padding") == 1) > options.get("dilation", 1) * 2:
            assert layer_norm(conv, *size) <= 0.3 * (1 + 1e-12)
    if axes == 1:
        largest = layer_norm(conv, 150)
        assert largest <= 0.3 * (1 + 1e-12)
        # With both, the bound is that of stride 1.
        assert largest >= 0.97 * 0.3 or ("stride" in options and "padding_mode" in options)


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        (1, {}),
        (1, {"stride": 2}),
        (1, {"stride": 2, "output_padding": 1, "padding": 1}),
        (2, {"stride": 2}),
        (2, {"padding": 1}),
        (3, {"stride": 2, "output_padding": 1, "padding": 1}),
    ],
    ids=str,
)
def test_the_norm_of_a_transposed_convolution(axes, options) -> None:
    _, kind, sizes = KINDS[axes]
    torch.manual_seed(0)
    conv = kind(4, 2, 3, bias=False, dtype=torch.float64, groups=2, **options)
    sp.constrain(conv, "weight", sp.SpectralNorm(0.3, mode="equal"))
    size = sizes[0] if axes > 1 else (sizes[0],)
    assert layer_norm(conv, *size) <= 0.3 * (1 + 1e-12)
    if axes == 1:
        assert layer_norm(conv, 150) >= 0.97 * 0.3


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 1, 2), (2, 0, 1)])
@pytest.mark.turns(2)
def test_a_kernel_of_64_channels_in_training(stride, padding, groups) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, 3, stride=stride, padding=padding, groups=groups, bias=False)
    sp.constrain(conv, "weight", sp.SpectralNorm(1.0, mode="equal"))
    optimizer = torch.optim.Adam(conv.parameters(), lr=3e-3)
    x = torch.randn(2, 64, 8, 8)
    for _ in range(4):
        optimizer.zero_grad()
        conv(x).square().mean().neg().backward()
        optimizer.step()
    found = [power_norm(conv, size) for size in (5, 16, 32)]
    assert max(found) <= 1 + 1e-4
    assert max(found) >= 0.97


def test_a_grid_of_frequencies_alone_is_no_bound() -> None:
    """The kernel is largest between the four frequencies of a grid."""
    conv = nn.Conv1d(1, 1, 5, bias=False, dtype=torch.float64)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[[1.0, -(0.5**0.5), 0.0, 0.5**0.5, -1.0]]]))
    on_grid = torch.fft.fft(conv.weight.detach()[0, 0], n=4).abs().max()
    true = layer_norm(conv, 150)
    assert on_grid < 0.6 * true
    sp.constrain(conv, "weight", sp.SpectralNorm(1.0, mode="equal"))
    assert 0.97 <= layer_norm(conv, 150) <= 1 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("stride", [1, 2])
def test_derivatives_of_a_kernel(stride, dtype) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, stride=stride, bias=False, dtype=dtype)
    sp.constrain(conv, "weight", sp.SpectralNorm(0.5, mode="equal"))
    constraint = conv.parametrizations.weight[0]
    T = conv.parametrizations.weight.original.detach().clone().requires_grad_()
    torch.autograd.gradcheck(constraint, (T,), check_forward_ad=True, fast_mode=True)
    torch.autograd.gradgradcheck(constraint, (T,), fast_mode=True)
    # The gradient in terms of the layer: that of torch.func agrees with the kept read's.
    G = torch.randn_like(conv.weight)
    functional = torch.func.grad(lambda t: (constraint(t) * G).abs().sum())(T.detach())
    (eager,) = torch.autograd.grad((constraint(T) * G).abs().sum(), T)
    torch.testing.assert_close(functional, eager)


@pytest.mark.nightly
def test_a_kernel_compiled_saved_copied_and_averaged() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
    sp.constrain(conv, "weight", sp.SpectralNorm(0.5))
    x = torch.randn(2, 4, 9, 9)
    expected = conv(x)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(copy.deepcopy(conv)(x), expected, rtol=0, atol=0)
    averaged = AveragedModel(conv, use_buffers=True)
    averaged.update_parameters(conv)
    assert layer_norm(averaged.module.double(), 10, 10) <= 0.5 * (1 + 1e-12)
    sp.remove(conv)
    torch.testing.assert_close(conv(x), expected, rtol=0, atol=0)


def test_at_most_leaves_a_smaller_kernel_bit_for_bit() -> None:
    conv = nn.Conv2d(4, 6, 3)
    before = conv.weight.detach().clone()
    sp.constrain(conv, "weight", sp.SpectralNorm(100.0))
    assert torch.equal(conv.weight, before)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding_mode": "reflect", "padding": 1}, "expected.*padding_mode.*got 'reflect'"),
        ({"padding_mode": "replicate", "padding": 1}, "expected.*padding_mode.*got 'replicate'"),
        ({"padding_mode": "circular", "padding": 2}, "expected.*padding.*got"),
    ],
)
def test_paddings_that_repeat_pixels_are_refused(options, message) -> None:
    conv = nn.Conv2d(2, 2, 3, bias=False, dtype=torch.float64, **options)
    with pytest.raises(ValueError, match=message):
        sp.constrain(conv, "weight", sp.SpectralNorm())
    # With reason: the norm of the layer is above that of its kernel.
    other = nn.Conv2d(2, 2, 3, bias=False, dtype=torch.float64)
    with torch.no_grad():
        for each in (conv, other):
            each.weight.zero_()[..., 0] = 1
    sp.constrain(other, "weight", sp.SpectralNorm("present"))
    assert layer_norm(conv, 3, 3) > other.parametrizations.weight[0].norm


def test_other_constraints_refuse_kernels_and_name_this_one() -> None:
    for chain in (sp.ScaledCayley(), [sp.ScaledCayley(), sp.SpectralNorm()]):
        with pytest.raises(ValueError, match="SpectralNorm"):
            sp.constrain(nn.Conv2d(2, 2, 3), "weight", chain)


def test_a_weight_outside_is_refused_and_the_remedy_works() -> None:
    layer = constrained(torch.randn(4, 6), 0.5)
    W = torch.randn(4, 6)
    with pytest.raises(InManifoldError, match=r"SpectralNorm: expected.*0\.5, got"):
        layer.weight = W
    layer.weight = W * (0.5 / norm(W)).float()
    torch.testing.assert_close(layer.weight, W * (0.5 / norm(W)).float())


def test_the_norm_of_an_assigned_kernel_is_its_own_though_its_memory_is_used_again() -> None:
    conv = nn.Conv2d(3, 4, 3, bias=False)
    sp.constrain(conv, "weight", sp.SpectralNorm(1.0))
    signs = torch.tensor([1.0, -1.0, 1.0])
    smooth = (0.01 * torch.randn(4, 3, 1, 1)).expand(4, 3, 3, 3)  # Largest at the frequency 0.
    buffer = smooth.clone()
    conv.weight = buffer
    buffer.copy_(100 * smooth * signs[:, None] * signs)  # Largest near π.
    with pytest.raises(InManifoldError, match=r"SpectralNorm: expected"):
        conv.weight = buffer
    conv.parametrizations.weight[0].norm = 0.01
    with torch.no_grad():
        conv.parametrizations.weight.original.copy_(buffer.flatten(1))
    assert layer_norm(conv, 3, 16) <= 0.01 * (1 + 1e-6)


def test_each_bad_argument_and_weight_is_named() -> None:
    for bad in (0.0, -1.0, torch.inf, torch.tensor([1.0, torch.nan])):
        with pytest.raises(ValueError, match=r"norm: expected.*got"):
            sp.SpectralNorm(bad)
    for bad in ("now", None):
        with pytest.raises(ValueError, match=f"norm: expected.*got {bad!r}"):
            sp.SpectralNorm(bad)
    with pytest.raises(ValueError, match=r"mode: expected.*got 'latched'"):
        sp.SpectralNorm(mode="latched")
    with pytest.raises(ValueError, match=r"solver: expected.*got 'lapack'"):
        sp.SpectralNorm(solver="lapack")
    with pytest.raises(ValueError, match=r"norm: expected.*got"):
        sp.SpectralNorm(nn.Parameter(torch.ones(())))
    sp.SpectralNorm(nn.Parameter(torch.ones(())).detach())  # The remedy.
    with pytest.raises(ValueError, match=r"expected.*'present', got 0"):
        constrained(torch.zeros(3, 4), "present")
    with pytest.raises(NotFiniteError):
        constrained(torch.full((3, 4), torch.nan))


def test_an_orthogonal_weight_is_at_its_bound() -> None:
    """All singular values are equal, so no block of vectors has a gap to the rest."""
    W = orthogonal((128, 128), torch.float32)
    layer = constrained(W, 1.0)
    torch.testing.assert_close(layer.weight, W, rtol=1e-6, atol=0)
    assert norm(layer.weight) <= 1 + SINGLE


def test_a_kernel_that_overlaps_along_one_axis_bounds_the_norm_of_the_layer() -> None:
    for size, padding in (((3, 1), (1, 0)), ((1, 3), (0, 1))):
        layer = nn.Conv2d(2, 2, size, padding=padding, bias=False)
        layer.weight.data.fill_(1.0)
        sp.constrain(layer, "weight", sp.SpectralNorm(1.0))
        x = torch.ones(1, 2, 12, 12)
        with torch.no_grad():
            assert layer(x).norm() <= (1 + 1e-5) * x.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (2, 4, 4)])
def test_the_nearest_member_is_as_precise_however_large_the_weight_is(shape, dtype) -> None:
    W = torch.randn(shape, dtype=dtype)
    U, sigma, Vh = torch.linalg.svd(W.to(torch.complex128), full_matrices=False)
    condition = float((sigma[..., :1] / sigma).max())
    for exponent in (2, 4, 8, 20, 30):
        found = sp.SpectralNorm(0.9).project(10.0**exponent * W)
        expected = (U * (10.0**exponent * sigma).clamp(max=0.9)[..., None, :]) @ Vh
        # Rounding moves singular vectors by eps times the largest singular value over the least.
        tolerance = 20 * condition * torch.finfo(dtype).eps
        assert float((found - expected).abs().max()) <= tolerance
    W = 1e20 * W
    W.reshape(-1)[0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        sp.SpectralNorm(0.9).project(W)
