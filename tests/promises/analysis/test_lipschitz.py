"""One number for a network: each layer's constant against maximisation, networks against attack, refusals."""

import itertools
import math

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.analysis import certified_radius, lipschitz
from tests.messages import refused

SMALL = math.sqrt(torch.finfo(torch.float64).eps)


def largest_slope(module):
    """The largest slope of a function of each entry, by differences on a grid and golden refinement."""
    module = module.double()
    low, high, found = -30.0, 30.0, 0.0
    for _ in range(6):
        x = torch.linspace(low, high, 40001, dtype=torch.float64)[:, None].requires_grad_()
        (slopes,) = torch.autograd.grad(module(x).sum(), x)
        k = int(slopes.abs().argmax())
        found = max(found, float(slopes.abs().max()))
        width = (high - low) / 1000
        middle = float(x[k].detach())
        low, high = middle - width, middle + width
    return found


ENTRYWISE = [
    nn.ReLU(),
    nn.ReLU6(),
    nn.LeakyReLU(0.3),
    nn.LeakyReLU(-1.7),
    nn.PReLU(init=1.4),
    nn.ELU(),
    nn.ELU(1.9),
    nn.CELU(0.4),
    nn.SELU(),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.SiLU(),
    nn.Mish(),
    nn.Sigmoid(),
    nn.LogSigmoid(),
    nn.Hardsigmoid(),
    nn.Tanh(),
    nn.Hardtanh(),
    nn.Hardswish(),
    nn.Softplus(),
    nn.Softplus(beta=3.0),
    nn.Softsign(),
    nn.Softshrink(),
    nn.Tanhshrink(),
    nn.Identity(),
]


@pytest.mark.parametrize("module", ENTRYWISE, ids=str)
def test_the_constant_of_an_activation_is_its_largest_slope(module) -> None:
    constant = lipschitz(module.eval())
    slope = largest_slope(module)
    assert slope <= constant * (1 + 4e-16)
    is_approached = isinstance(module, nn.Hardswish | nn.ELU | nn.Hardsigmoid)
    assert constant <= slope * (1 + (1e-3 if is_approached else 1e-9))


def test_gelu_in_closed_form() -> None:
    exact = 0.5 * (1 + math.erf(1)) + math.exp(-1) / math.sqrt(math.pi)
    assert 0 <= lipschitz(nn.GELU().eval()) / exact - 1 <= 1e-15


def jacobian_norm(module, shape):
    """The norm of the Jacobian at a random point: the layer's, if the layer is linear."""
    x = torch.randn(shape, dtype=torch.float64)
    J = torch.autograd.functional.jacobian(lambda x: module(x[None])[0], x)
    return torch.linalg.matrix_norm(J.reshape(-1, x.numel()), 2).item()


LINEAR = [
    (nn.Linear(7, 4), (7,)),
    (nn.Linear(3, 9), (3,)),
    (nn.AvgPool1d(3), (2, 12)),
    (nn.AvgPool2d(2), (1, 8, 8)),
    (nn.AvgPool2d((3, 2), stride=(1, 2)), (1, 12, 8)),
    (nn.AvgPool2d(3, stride=2, padding=1), (1, 15, 15)),
    (nn.AvgPool3d(2, divisor_override=3), (1, 4, 4, 4)),
    (nn.AdaptiveAvgPool2d(1), (3, 1, 1)),
    (nn.Flatten(), (2, 3)),
    (nn.Unflatten(1, (2, 3)), (6,)),
    (nn.Dropout(0.5), (5,)),
    (nn.Conv1d(2, 3, 4, stride=2), (2, 30)),
    (nn.Conv2d(2, 3, 3, padding=1), (2, 14, 14)),
    (nn.Conv2d(4, 4, 3, groups=2), (4, 14, 14)),
    (nn.Conv1d(4, 4, 3, groups=2, dilation=2, padding=2), (4, 60)),
    (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 12, 12)),
    (nn.Conv2d(3, 5, 2, stride=2), (3, 6, 6)),
    (nn.ConvTranspose1d(3, 2, 4, stride=2), (3, 20)),
]


@pytest.mark.parametrize(("module", "shape"), LINEAR, ids=str)
@pytest.mark.turns(3)
def test_the_constant_of_a_linear_layer_bounds_its_norm_closely(module, shape) -> None:
    module = module.double().eval()
    constant, norm = lipschitz(module), jacobian_norm(module, shape)
    assert norm <= constant
    # A convolution's bound is for images of all sizes, and up to 2.3 % above.
    assert constant <= norm * (
        1.15 if isinstance(module, nn.modules.conv._ConvNd | nn.AvgPool2d) else 1 + 1e-9
    )


@pytest.mark.parametrize("taps", [2, 3, 5, 8])
@pytest.mark.turns(2)
def test_the_constant_of_a_convolution_covers_every_frequency(taps) -> None:
    """A computation on a grid of them misses the largest norm, which lies between two."""
    omega = torch.linspace(0, torch.pi, 20_001, dtype=torch.float64)
    phases = torch.exp(1j * omega[:, None] * torch.arange(taps))
    for _ in range(5):
        layer = nn.Conv1d(2, 3, taps, padding=taps, dtype=torch.float64).eval()
        symbols = torch.einsum("wk,oik->woi", phases, layer.weight.detach().to(phases.dtype))
        largest = torch.linalg.matrix_norm(symbols, 2).max()
        assert largest <= lipschitz(layer) <= 1.1 * largest


@pytest.mark.parametrize(
    ("kind", "size"), [(nn.BatchNorm1d, ()), (nn.BatchNorm2d, (2, 2)), (nn.BatchNorm3d, (2, 1, 2))]
)
def test_batch_norm_in_evaluation(kind, size) -> None:
    module = kind(3).double()
    module(0.1 * torch.randn(50, 3, *size, dtype=torch.float64))
    with torch.no_grad():
        module.weight.copy_(torch.tensor([1.0, -4.0, 0.5]))
    module.eval()
    assert abs(lipschitz(module) / jacobian_norm(module, (3, *size)) - 1) <= 1e-9


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.MaxPool1d(2), (1, 8)),
        (nn.MaxPool2d(3, stride=2), (1, 9, 9)),
        (nn.MaxPool2d(2, stride=1), (1, 6, 6)),
        (nn.MaxPool1d(3, stride=2, dilation=2), (1, 15)),
        (nn.MaxPool1d(3, stride=3, dilation=2, padding=1), (1, 15)),
        (nn.MaxPool2d(2, ceil_mode=True), (1, 5, 5)),
        (nn.AdaptiveMaxPool1d(1), (1, 6)),
    ],
    ids=str,
)
def test_one_pixel_in_all_its_windows_attains_the_constant_of_max_pooling(module, shape) -> None:
    constant, found = lipschitz(module.eval()), 0.0
    x = torch.zeros(1, *shape, dtype=torch.float64)
    for place in itertools.product(*map(range, shape)):
        y = x.clone()
        y[(0, *place)] = 1.0
        found = max(found, float((module(y) - module(x)).norm()))
    assert abs(found - constant) <= 1e-12


def test_softmax() -> None:
    for module in (nn.Softmax(dim=1), nn.Softmin(dim=1)):
        x = torch.tensor([20.0, 20.0, 0.0, 0.0], dtype=torch.float64)
        J = torch.autograd.functional.jacobian(lambda x, f=module: f(x[None])[0], x)
        assert 0.4999 < torch.linalg.matrix_norm(J, 2) <= lipschitz(module.eval()) == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_weight_has_a_proven_norm(dtype) -> None:
    module = nn.Linear(9, 6, dtype=dtype).eval()
    norm = torch.linalg.matrix_norm(module.weight.detach().double(), 2)
    assert norm <= lipschitz(module) <= norm * (1 + 1e-12)
    with torch.no_grad():
        module.weight.zero_()
    assert lipschitz(module) == 0


# Networks -------------------------------------------------------------------------------------------


def networks():
    """Ten networks and the shape of an input of each."""
    torch.manual_seed(0)

    def conv(activation):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), activation, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
        )

    def dense(activation, width=20):
        return nn.Sequential(
            nn.Linear(6, width), activation, nn.Linear(width, width), activation, nn.Linear(width, 3)
        )

    bounded = sp.constrain(dense(nn.ReLU()), "*.weight", sp.SpectralNorm(1.0))
    orthogonal = sp.constrain(dense(nn.LeakyReLU(0.5)), "*.weight", sp.ScaledCayley())
    residual = nn.Sequential(
        nn.Linear(6, 10),
        sp.nn.Residual(nn.Sequential(nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 10))),
        nn.Linear(10, 2),
    )
    batch = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    batch(torch.randn(100, 6))
    strided = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.GELU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(3, 4), nn.Softmax(1)
    )
    return {
        "relu": (dense(nn.ReLU()), (6,)),
        "tanh": (dense(nn.Tanh()), (6,)),
        "silu": (dense(nn.SiLU()), (6,)),
        "bounded": (bounded, (6,)),
        "orthogonal": (orthogonal, (6,)),
        "residual": (residual, (6,)),
        "batch": (batch, (6,)),
        "conv": (conv(nn.ReLU()), (1, 8, 8)),
        "conv-mish": (conv(nn.Mish()), (1, 8, 8)),
        "strided": (strided, (1, 8, 8)),
    }


def attacked(model, shape, steps=150):
    """The largest quotient of distances that Adam finds, from eight starts."""
    x = torch.randn(8, *shape, dtype=torch.float64, requires_grad=True)
    d = torch.randn(8, *shape, dtype=torch.float64, requires_grad=True)
    optimizer, best = torch.optim.Adam([x, d], lr=3e-2), 0.0
    for _ in range(steps):
        quotients = (model(x + d) - model(x)).flatten(1).norm(dim=1) / d.flatten(1).norm(dim=1)
        best = max(best, float(quotients.detach().max()))
        optimizer.zero_grad()
        (-quotients.log().sum()).backward()
        optimizer.step()
    return best


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", networks())
def test_no_attack_finds_more(name) -> None:
    model, shape = networks()[name]
    model = model.double().eval()
    bound, found = lipschitz(model), attacked(model, shape)
    assert found <= bound
    # Not vacuous: within a factor of 30 for these, and close where the layers keep lengths.
    assert bound <= (1.5 if name == "orthogonal" else 30) * found


def test_a_certified_radius_holds_under_attack() -> None:
    model = networks()["bounded"][0].double().eval()
    x = torch.randn(100, 6, dtype=torch.float64)
    logits = model(x)
    radius = certified_radius(logits, lipschitz(model))
    classes = logits.argmax(dim=-1)
    d = torch.randn(100, 6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([d], lr=0.1)
    for _ in range(100):
        step = d / d.norm(dim=1, keepdim=True) * radius[:, None] * (1 - 1e-9)
        moved = model(x + step)
        assert torch.equal(moved.argmax(dim=-1), classes)
        optimizer.zero_grad()
        nn.functional.cross_entropy(moved, classes).neg().backward()
        optimizer.step()


def test_radii_of_ties_and_of_constant_networks() -> None:
    logits = torch.tensor([[2.0, 2.0, 1.0], [3.0, 1.0, 0.0], [float("nan"), 0.0, 1.0]])
    radius = certified_radius(logits, 2.0)
    assert radius[0] == 0
    assert radius[1] == pytest.approx(1 / math.sqrt(2))
    assert radius[2].isnan()
    assert certified_radius(logits, 0.0)[:2].tolist() == [0.0, math.inf]


# What is refused ------------------------------------------------------------------------------------


class Mine(nn.Sequential):
    def forward(self, x):
        return 100 * super().forward(x)


def hooked():
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda module, args, output: 100 * output)
    return module


def with_a_forward():
    module = nn.Linear(2, 2)
    module.forward = lambda x: 100 * x
    return module


def without_statistics():
    return nn.BatchNorm1d(2, track_running_stats=False)


REFUSED = {
    "subclass": lambda: Mine(nn.Linear(2, 2)),
    "hook": hooked,
    "forward": with_a_forward,
    "layer norm": lambda: nn.LayerNorm(2),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "rnn": lambda: nn.RNN(2, 2),
    "statistics": without_statistics,
    "glu": lambda: nn.GLU(),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "axes": lambda: nn.Upsample(scale_factor=2),
    "rounded scale": lambda: nn.UpsamplingNearest2d(scale_factor=41),
    "classes": lambda: nn.LogSoftmax(dim=1),
    "not finite": lambda: _batch_norm(math.nan),
    "slope": lambda: nn.LeakyReLU(math.nan),
    "alpha": lambda: nn.ELU(math.inf),
    "complex": lambda: nn.Linear(2, 2, dtype=torch.complex64),
    "hardshrink": lambda: nn.Hardshrink(),
    "softplus": lambda: nn.Softplus(threshold=1.0),
    "indices": lambda: nn.MaxPool1d(2, return_indices=True),
    "ceil": lambda: nn.AvgPool1d(2, ceil_mode=True),
    "pad": lambda: nn.AvgPool1d(3, padding=1, count_include_pad=False),
    "adaptive": lambda: nn.AdaptiveAvgPool1d(3),
    "inplace": lambda: sp.nn.Residual(nn.SiLU(inplace=True)),
    "modrelu": lambda: _modrelu(0.1),
    "module list": lambda: nn.ModuleList([nn.Linear(2, 2)]),
}


def _batch_norm(variance):
    module = nn.BatchNorm1d(2)
    module.running_var[1] = variance
    return module


def _modrelu(bias):
    module = sp.nn.ModReLU(2)
    nn.init.constant_(module.bias, bias)
    return module


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_and_may_be_stated(name) -> None:
    model = nn.Sequential(nn.Linear(2, 2), REFUSED[name]()).eval()
    with refused("lipschitz", "'1"):
        lipschitz(model)
    alone = lipschitz(nn.Sequential(model[0]).eval())
    assert lipschitz(model, {"1": 3.0}) == pytest.approx(3 * alone)


def test_training_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    with refused("lipschitz", "eval"):
        lipschitz(model)
    assert lipschitz(model.eval()) == pytest.approx(lipschitz(model[0]))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_recurrent_network_is_told_at_once_what_speaks_of_it(kind) -> None:
    """Not first to call eval(), which would not help."""
    with refused("the model itself", "analysis.contraction"):
        lipschitz(kind(2, 2))


def test_a_global_hook_is_refused() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        with refused("lipschitz", "hook"):
            lipschitz(nn.ReLU().eval())
    finally:
        handle.remove()
    assert lipschitz(nn.ReLU().eval()) == 1


def test_modrelu_with_biases_of_at_most_0_counts() -> None:
    assert lipschitz(_modrelu(-0.1).eval()) == 1


def test_one_module_twice_counts_twice() -> None:
    layer = nn.Linear(2, 2)
    assert lipschitz(nn.Sequential(layer, layer).eval()) == pytest.approx(lipschitz(layer) ** 2)


@pytest.mark.parametrize(
    "constants", [{"1": -1.0}, {"1": math.inf}, {"1": "3"}, {"2": 1.0}, {"": 1.0, "0": 2.0}]
)
def test_constants_that_are_none_are_refused(constants) -> None:
    with refused("constants"):
        lipschitz(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)).eval(), {"1": 1.0} | constants)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((torch.randn(3, 1), 1.0), "logits"),
        ((torch.tensor(1.0), 1.0), "logits"),
        ((torch.randn(3, 2, dtype=torch.complex64), 1.0), "logits"),
        ((None, 1.0), "logits"),
        ((torch.randn(3, 2), -1.0), "lipschitz"),
        ((torch.randn(3, 2), math.nan), "lipschitz"),
    ],
)
def test_bad_arguments_of_a_radius_are_named(arguments, name) -> None:
    with refused(name):
        certified_radius(*arguments)


def test_a_tensor_is_no_model() -> None:
    with refused("model"):
        lipschitz(torch.eye(2))


def test_the_residual_adds_its_input() -> None:
    block = sp.nn.Residual(nn.Linear(3, 3))
    x = torch.randn(2, 3)
    torch.testing.assert_close(block(x), x + block.function(x))
    with refused("function"):
        sp.nn.Residual(torch.relu)


def test_a_residual_block_has_one_more_than_its_function() -> None:
    layer = nn.Linear(4, 4).double()
    with torch.no_grad():
        layer.weight.copy_(0.5 * torch.eye(4))
    for mean in (False, True):
        block = sp.nn.Residual(layer, mean).eval()
        assert abs(lipschitz(block) - jacobian_norm(block, (4,))) <= 1e-12


def test_a_residual_whose_shapes_differ_is_refused() -> None:
    """Adding would repeat the result of the function, and the constant would be larger."""
    with refused("function"):
        sp.nn.Residual(nn.Linear(3, 1))(torch.randn(2, 3))


def test_a_module_that_is_not_known_is_named_with_what_helps() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Mine(nn.Linear(2, 2))).eval()
    with refused("lipschitz", r"lipschitz\(model, {'1': L}\)"):
        lipschitz(model)
    with refused("lipschitz", "Pass the torch.nn.Sequential inside it"):
        lipschitz(model[1])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("gain", [None, 0.7])
def test_layers_of_systems_count_with_the_gain_that_they_have(gain, bidirectional) -> None:
    net = sp.nn.StateSpace(
        2, 4, 3, 2, "relu", gain, moduli=(0.3, 0.8), bidirectional=bidirectional, dtype=torch.float64
    ).eval()
    constant = lipschitz(net)
    assert gain is None or constant <= gain * (1 + 1e-8)
    x, y = torch.randn(2, 300, 1, 2, dtype=torch.float64)
    assert torch.dist(net(x)[0], net(y)[0]) <= constant * torch.dist(x, y)
    single = sp.nn.StateSpace(2, 4, 3, bidirectional=bidirectional, dtype=torch.float64).eval()
    gains = [sp.analysis.h_infinity(*cell.system()) for cell in single.cells]
    assert lipschitz(single) == pytest.approx(math.hypot(*map(float, gains)), rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_radius_is_rounded_down(dtype) -> None:
    logits = torch.randn(2000, 3).to(dtype)
    first, second = logits.double().topk(2, dim=1).values.unbind(1)
    found, exact = certified_radius(logits, 0.3).double(), (first - second) / (math.sqrt(2) * 0.3)
    assert (found <= exact).all()
    assert (found >= exact * (1 - 4e-7)).all()
    assert certified_radius(torch.tensor([4e4, -4e4]).half(), 1.0).isfinite()
