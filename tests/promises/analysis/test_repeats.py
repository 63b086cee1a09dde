"""Constants of paddings, rearranged pixels, nearest neighbours, LogSoftmax and MaxMin against their
Jacobians."""

import itertools
import math

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.analysis import lipschitz
from tests.messages import refused


def jacobian_norm(module, x):
    J = torch.autograd.functional.jacobian(lambda x: module(x[None])[0], x)
    return torch.linalg.matrix_norm(J.reshape(-1, x.numel()), 2).item()


IMAGES = [
    (nn.ZeroPad1d(2), (2, 3)),
    (nn.ConstantPad2d(1, 3.0), (1, 3, 2)),
    (nn.ReflectionPad1d((2, 1)), (2, 4)),
    (nn.ReflectionPad1d((2, 0)), (1, 7)),
    (nn.ReflectionPad2d(1), (1, 3, 5)),
    (nn.ReflectionPad3d(1), (1, 2, 3, 4)),
    (nn.ReplicationPad1d((3, 2)), (1, 1)),
    (nn.ReplicationPad2d((1, 2, 0, 3)), (1, 2, 3)),
    (nn.ReplicationPad3d(1), (1, 1, 2, 3)),
    (nn.CircularPad1d((1, 2)), (1, 2)),
    (nn.CircularPad2d(1), (2, 1, 4)),
    (nn.PixelShuffle(2), (8, 2, 3)),
    (nn.PixelUnshuffle(2), (1, 4, 2)),
    (nn.Upsample(scale_factor=(3, 2)), (1, 3, 2)),
    (nn.Upsample(scale_factor=2.5), (1, 5)),
    (nn.Upsample(scale_factor=1.5), (1, 3, 4)),
    (nn.Upsample(size=(7, 3)), (1, 3, 3)),
    (nn.Upsample(scale_factor=1.7, mode="nearest-exact"), (2, 4)),
    (nn.UpsamplingNearest2d(scale_factor=3), (1, 2, 2)),
    (nn.Upsample(scale_factor=(41,)), (1, 2)),
]


@pytest.mark.parametrize(("module", "shape"), IMAGES, ids=str)
def test_with_a_size_the_constant_is_the_norm(module, shape) -> None:
    """The modules are linear, but for the value of a constant padding."""
    norm = jacobian_norm(module, torch.zeros(shape, dtype=torch.float64))
    single = jacobian_norm(module, torch.zeros(shape))
    exact = max(norm, single)  # torch rounds the positions of copies in the dtype.
    assert abs(lipschitz(module.eval(), input_shape=shape) - exact) <= 1e-6 * exact


@pytest.mark.parametrize("sides", [(0, 0), (1, 0), (0, 2), (1, 1), (2, 1), (3, 3)])
@pytest.mark.parametrize("kind", [nn.ReflectionPad1d, nn.ReplicationPad1d, nn.CircularPad1d])
def test_without_a_size_the_constant_is_that_of_the_worst_size(kind, sides) -> None:
    module = kind(sides).eval()
    least = 1 if kind is nn.ReplicationPad1d else max(sides) + (kind is nn.ReflectionPad1d)
    sizes = range(max(1, least), 12)
    norms = [jacobian_norm(module, torch.zeros(1, n, dtype=torch.float64)) for n in sizes]
    assert abs(lipschitz(module) - max(norms)) <= 1e-12


@pytest.mark.parametrize("scale", [1, 2, 3, 5, 7, 8])
def test_a_whole_scale_needs_no_size(scale) -> None:
    module = nn.UpsamplingNearest2d(scale_factor=scale).eval()
    norms = [jacobian_norm(module, torch.zeros(1, n, 2)) for n in (1, 2, 5)]
    assert abs(lipschitz(module) - max(norms)) <= 1e-5 * scale


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(("k", "dilation", "padding"), [(3, 1, 1), (2, 1, 1), (3, 2, "same"), (5, 1, 3)])
def test_a_convolution_that_repeats_pixels_is_bounded(mode, k, dilation, padding) -> None:
    """With the kernel of ones and random ones: at every size, and closer for its own."""
    conv = (
        nn.Conv1d(1, 2, k, dilation=dilation, padding=padding, padding_mode=mode, bias=False).double().eval()
    )
    for start in (nn.init.ones_, nn.init.normal_):
        start(conv.weight)
        every = lipschitz(conv)
        for n in range(5, 9):
            norm = jacobian_norm(conv, torch.zeros(1, n, dtype=torch.float64))
            own = lipschitz(conv, input_shape=(1, n))
            assert norm <= own <= every * (1 + 1e-12)


def test_a_circular_padding_that_repeats_results_counts_them() -> None:
    """The kernel alone has the norm 1, the layer returns its first pixel twice."""
    conv = nn.Conv1d(1, 1, 1, padding=1, padding_mode="circular", bias=False).double().eval()
    nn.init.ones_(conv.weight)
    assert abs(lipschitz(conv, input_shape=(1, 4)) - math.sqrt(2)) <= 1e-12
    assert lipschitz(conv) >= jacobian_norm(conv, torch.zeros(1, 1, dtype=torch.float64)) * (1 - 1e-12)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_log_softmax_has_the_root_of_the_number_of_classes(n) -> None:
    module = nn.LogSoftmax(dim=1).eval()
    bound = lipschitz(module, input_shape=(n,))
    x = torch.zeros(n, dtype=torch.float64)
    x[0] = 40.0
    assert bound * (1 - 1e-12) <= jacobian_norm(module, x) * (1 + 1e-9)
    for _ in range(20):
        assert jacobian_norm(module, 3 * torch.randn(n, dtype=torch.float64)) <= bound
    last = nn.Sequential(nn.Linear(4, n), nn.LogSoftmax(dim=-1)).eval()
    assert lipschitz(last) == pytest.approx(lipschitz(last[0]) * math.sqrt(n))


def test_classes_along_another_axis_need_the_shape() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1)).eval()
    with refused("lipschitz", "input_shape"):
        lipschitz(model)
    per_channel = lipschitz(model, input_shape=(7, 4))
    assert per_channel == pytest.approx(lipschitz(model[0]) * math.sqrt(7))


def test_glu_grows_with_its_input() -> None:
    slopes = [jacobian_norm(nn.GLU(), torch.tensor([size, 0.0])) for size in (1.0, 100.0)]
    assert slopes[1] > 20 * slopes[0]
    with refused("lipschitz", "GLU"):
        lipschitz(nn.GLU().eval())


# MaxMin -----------------------------------------------------------------------------------------------


def test_max_min_sorts_pairs_and_keeps_lengths() -> None:
    x = torch.randn(5, 6, dtype=torch.float64)
    y = sp.nn.MaxMin()(x)
    assert torch.equal(y[:, :3], torch.maximum(x[:, :3], x[:, 3:]))
    assert torch.equal(y.sort(dim=1).values, x.sort(dim=1).values)
    for row in x:
        J = torch.autograd.functional.jacobian(sp.nn.MaxMin(), row)
        assert torch.equal(J @ J.mT, torch.eye(6, dtype=torch.float64))
    images = torch.randn(2, 4, 3, 3)
    assert torch.equal(sp.nn.MaxMin(dim=1)(images)[:, :, 1, 2], sp.nn.MaxMin()(images[:, :, 1, 2]))


def test_max_min_has_gradients() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sp.nn.MaxMin(), x)
    assert torch.autograd.gradgradcheck(sp.nn.MaxMin(), x)


def test_max_min_has_the_constant_1() -> None:
    module = sp.nn.MaxMin().eval()
    assert lipschitz(module) == 1
    points = torch.tensor(list(itertools.product((-1.0, 0.0, 0.5, 2.0), repeat=4)))
    assert (
        torch.cdist(module(points), module(points)) <= torch.cdist(points, points) * (1 + 1e-5) + 1e-3
    ).all()


@pytest.mark.parametrize(
    ("make", "name"), [(lambda: sp.nn.MaxMin(1.5), "dim"), (lambda: sp.nn.MaxMin(True), "dim")]
)
def test_a_dim_that_is_none_is_refused(make, name) -> None:
    with refused(name):
        make()


def test_an_odd_number_of_features_is_refused() -> None:
    with refused("MaxMin", "expected an even size of dimension -1, got 3"):
        sp.nn.MaxMin()(torch.randn(2, 3))
