"""SchurForm: any real weight, its spectrum, the bounds, the penalty, P by other parametrizations."""

import copy
import gc
import math
import weakref

import geotorch
import numpy as np
import pytest
import torch

import spectral_param as sp
from spectral_param.errors import InManifoldError, NotFiniteError, UnsupportedDtypeError
from spectral_param.testing import Holder
from tests import matrices
from tests.matrices import adversarial_matrices
from tests.matrices import departure as henrici
from tests.promises.cases import orthogonality_defect, radii

MAKES = {
    "exact": sp.SchurForm,
    "paper": lambda: sp.SchurForm(form="paper"),
    "Cayley": lambda: sp.SchurForm(sp.ScaledCayley()),
    "Cayley of determinant -1": lambda: sp.SchurForm(sp.ScaledCayley(1)),
}


def constrained(weight, parametrization=None, **kwargs):
    module = Holder(weight.clone())
    gates = weight.shape[-2] // weight.shape[-1]
    return sp.constrain(module, "weight", parametrization or sp.SchurForm(**kwargs), gates=gates)


def parts(module):
    weight = module.parametrizations.weight
    return weight[0], list(weight.parameters(recurse=False))


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize(("n", "dtype"), [(7, torch.float64), (40, torch.float32)])
def test_a_random_weight_round_trips(n, dtype, make) -> None:
    W = torch.from_numpy(matrices.ginibre(n, np.random.default_rng(0))).to(dtype)
    atol = 1e-10 if dtype == torch.float64 else 1e-4
    module = constrained(W, make())
    assert (module.weight - W).abs().max() < atol
    other = torch.randn(n, n, dtype=dtype)
    module.weight = other
    assert (module.weight - other).abs().max() < atol


@pytest.mark.parametrize(
    ("n", "name"), [(1, "exact"), (1, "Cayley"), (8, "exact"), (5, "paper"), (5, "Cayley")]
)
@pytest.mark.turns(2)
def test_adversarial_weights_round_trip(n, name) -> None:
    make = MAKES[name]
    cases = {name: torch.from_numpy(W) for name, W in adversarial_matrices(n).items()}
    module = constrained(cases["random"], make())
    for name, W in cases.items():
        for each in (constrained(W, make()), module):
            each.weight = W
            assert (each.weight - W).abs().max() <= 1e-13 * n * W.abs().max(), name


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("entry", [2.0, -2.0, 0.0])
def test_every_sign_of_one_entry(entry, count) -> None:
    module = constrained(torch.tensor([[entry]]), P=sp.ScaledCayley(count))
    assert module.weight.item() == entry


def test_gates_and_batches_are_decomposed_each() -> None:
    lstm = sp.constrain(torch.nn.LSTM(3, 5, dtype=torch.float64), "weight_hh_l0", sp.SchurForm(radius=0.4))
    assert radii(lstm.weight_hh_l0).shape == (4,)
    assert radii(lstm.weight_hh_l0).max() <= 0.4 + 1e-9
    W = torch.randn(2, 3, 15, 5, dtype=torch.float64)
    torch.testing.assert_close(constrained(W).weight, W)


def test_structure_is_fixed_in_training_and_saved() -> None:
    real, pairs = (
        torch.diag(torch.tensor([1.0, 2.0, 3.0])),
        torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]),
    )
    module, other = constrained(real), constrained(pairs)
    assert parts(module)[0].pairs.sum() == 0
    assert parts(other)[0].pairs.sum() == 1
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.weight, module.weight)
    assert parts(other)[0].pairs.sum() == 0


def test_entries_without_a_block_are_not_read() -> None:
    module = sp.constrain(Holder(torch.empty(5, 5)), "weight", sp.SchurForm(), init="paper")
    _, (_, gamma, theta, log_shear, _) = parts(module)
    module.weight.square().sum().backward()
    unread = torch.tensor([1, 3])
    for original in (gamma, theta, log_shear):
        assert original.grad[unread].abs().max() == 0
    before = module.weight.detach().clone()
    for original in (gamma, theta, log_shear):
        original.data[unread] = torch.nan
    assert torch.equal(module.weight, before)


def test_the_papers_start() -> None:
    """γ = 1, θ in [0, 2π), T = 0, s = 1: orthogonal; P of determinant 1."""
    module = sp.constrain(
        Holder(torch.empty(50, 50, dtype=torch.float64)), "weight", sp.SchurForm(), init="paper"
    )
    schur, (T, gamma, theta, log_shear, P) = parts(module)
    assert (gamma == 1).all()
    assert (T == 0).all()
    assert (log_shear == 0).all()
    assert theta.min() >= 0
    assert math.pi < theta.max() < 2 * math.pi
    assert schur.pairs.tolist() == [True, False] * 25
    assert orthogonality_defect(module.weight).max() < 1e-13
    assert P.abs().max() <= math.pi / 2, "the Cayley start of P"


@pytest.mark.parametrize(
    "P", [sp.ScaledCayley(0.5), geotorch.SO(torch.Size((5, 5)))], ids=lambda P: type(P).__name__
)
def test_the_papers_start_with_another_p(P) -> None:
    module = sp.constrain(Holder(torch.empty(5, 5)), "weight", sp.SchurForm(P=P), init="paper")
    assert orthogonality_defect(module.weight).max() < 1e-5
    values = torch.linalg.eigvals(module.weight.detach())
    assert (values - 1).abs().min() < 1e-5, "an odd n has a real eigenvalue"


def test_p_by_another_library() -> None:
    W = torch.randn(5, 5)
    module = constrained(W, P=geotorch.SO(torch.Size((5, 5))))
    torch.testing.assert_close(module.weight, W, atol=1e-5, rtol=0)


def test_given_p_stays_unused() -> None:
    P = sp.ScaledCayley()
    constrained(torch.randn(4, 4), P=P)
    assert P.signs is None


class Identity(torch.nn.Module):
    """Returns I whatever it was given."""

    def forward(self, X):
        return torch.eye(X.shape[-1]) + 0 * X

    def right_inverse(self, X):
        return X


def test_a_p_that_cannot_be_reached() -> None:
    with pytest.raises(ValueError, match="P: expected"):
        constrained(torch.randn(6, 6), P=Identity())


def test_eigenvalues_are_those_of_the_weight() -> None:
    for form in ("exact", "paper"):
        module = constrained(torch.randn(9, 9, dtype=torch.float64), form=form)
        for original in module.parameters():
            original.data += 0.1 * torch.randn_like(original)
        schur, originals = parts(module)
        values = schur.eigenvalues(*originals)
        np.testing.assert_allclose(
            np.poly(values.numpy()), np.poly(module.weight.detach().numpy()), atol=1e-9
        )


# Bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_radius_holds_for_any_originals(scale) -> None:
    module = constrained(torch.randn(8, 8, dtype=torch.float64), radius=0.9, departure=1.0)
    schur, originals = parts(module)
    for original in originals:
        torch.nn.init.normal_(original, std=scale)
    assert radii(module.weight).item() <= 0.9 * (1 + 1e-12)
    assert schur.eigenvalues(*originals).abs().max() <= 0.9
    assert henrici(module.weight.detach().numpy()) <= 1 + 1e-12
    assert torch.linalg.matrix_norm(module.weight, 2) <= 1.9


@pytest.mark.parametrize(("bound", "low", "high"), [(5.0, 0.0, 0.93), (None, 1.2, torch.inf)])
@pytest.mark.turns(2)
def test_rounding_keeps_the_radius_only_next_to_normal_matrices(bound, low, high) -> None:
    """A target far outside drives the weight as far from normality as it may get."""
    torch.manual_seed(0)
    target = torch.randn(64, 64)
    module = constrained(torch.randn(64, 64) / 8, radius=0.9, departure=bound)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        (module.weight - target).square().sum().backward()
        optimizer.step()
    schur, originals = parts(module)
    assert schur.eigenvalues(*originals).abs().max() <= 0.9 * (1 + 1e-6)
    assert low <= radii(module.weight.detach().double()).item() <= high


def test_radius_keeps_what_is_inside_and_moves_the_rest() -> None:
    W = torch.diag(torch.tensor([0.5, -3.0, 2.0], dtype=torch.float64))
    W[0, 2] = 7.0
    expected = torch.diag(torch.tensor([0.5, -0.995, 0.995], dtype=torch.float64))
    values = torch.linalg.eigvals(constrained(W, radius=1.0).weight.detach()).real.sort().values
    torch.testing.assert_close(values, expected.diagonal().sort().values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.turns(2)
def test_eigenvalues_on_the_radius_are_kept_and_can_leave_it(dtype) -> None:
    W = torch.linalg.qr(torch.randn(6, 6, dtype=dtype)).Q
    module = constrained(W, radius=1.0)
    torch.testing.assert_close(module.weight, W, atol=1e-5 if dtype == torch.float32 else 1e-12, rtol=0)
    module.weight = W
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(50):
        optimizer.zero_grad()
        module.weight.square().sum().backward()
        optimizer.step()
    assert radii(module.weight).item() < 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_starts_where_training_can_move(dtype) -> None:
    """What half precision may do to 32 rows is more than the bounds, and must not put all on the bound."""
    module = constrained(torch.randn(32, 32, dtype=dtype) / 4, radius=0.9, departure=1.0)
    for _ in range(2):
        _, (T, gamma, *_) = parts(module)
        assert gamma.float().cos().abs().min() > 0.04  # d sin, 1 at the center
        assert henrici(module.weight.detach().double().numpy()) < 1.0
        assert torch.linalg.matrix_norm(T.float()) < 32  # 1000 on the bound itself
        module.weight = module.weight.detach().clone()


def test_a_trained_weight_can_be_assigned_again() -> None:
    module = constrained(torch.randn(8, 8, dtype=torch.float64), radius=0.9, departure=1.0)
    for original in module.parameters():
        original.data *= 30
    W = module.weight.detach()
    module.weight = W
    torch.testing.assert_close(module.weight, W, atol=1e-9, rtol=0)


def test_messages_of_assignments_outside() -> None:
    module = constrained(torch.eye(3), radius=2.0, departure=1.0)
    with pytest.raises(InManifoldError, match=r"SchurForm: expected.*<= 2 .*, got one outside by 3"):
        module.weight = 5 * torch.eye(3)
    with pytest.raises(InManifoldError, match=r"SchurForm: expected.*< 1, got one outside by 2"):
        module.weight = torch.eye(3).index_put((torch.tensor(0), torch.tensor(2)), torch.tensor(3.0))
    torch.testing.assert_close(module.weight, torch.eye(3), atol=1e-5, rtol=0)


def test_departure_keeps_what_is_inside_and_scales_the_rest() -> None:
    W = torch.randn(6, 6, dtype=torch.float64)
    D = henrici(W.numpy())
    torch.testing.assert_close(constrained(W, departure=1.1 * D).weight, W)
    V = constrained(W, departure=0.5 * D).weight.detach().numpy()
    assert henrici(V) == pytest.approx(0.995 * 0.5 * D)
    np.testing.assert_allclose(np.poly(V), np.poly(W.numpy()), atol=1e-10)


def test_the_papers_start_keeps_the_radius_with_a_gradient() -> None:
    module = sp.constrain(Holder(torch.empty(6, 6)), "weight", sp.SchurForm(radius=0.99), init="paper")
    schur, originals = parts(module)
    moduli = schur.eigenvalues(*originals).abs()
    torch.testing.assert_close(moduli, torch.full((6,), 0.99))
    (gradient,) = torch.autograd.grad(module.weight.square().sum(), originals[1])
    assert gradient[::2].abs().min() > 0.3
    module = sp.constrain(Holder(torch.empty(6, 6)), "weight", sp.SchurForm(radius=1.5), init="paper")
    schur, originals = parts(module)
    torch.testing.assert_close(schur.eigenvalues(*originals).abs(), torch.ones(6))


# Penalty --------------------------------------------------------------------------------------------


def test_penalty_is_that_of_the_paper() -> None:
    module = sp.constrain(Holder(torch.empty(5, 5)), "weight", sp.SchurForm(delta=0.1), init="paper")
    schur, originals = parts(module)
    assert schur.penalty(*originals).item() == 0
    originals[1].data = torch.tensor([1.5, 99.0, -0.8, 99.0, -2.0])
    penalty = schur.penalty(*originals)
    assert penalty.item() == pytest.approx(0.1 * (0.5**2 + 0.2**2 + 1.0**2))
    (gradient,) = torch.autograd.grad(penalty, originals[1])
    torch.testing.assert_close(gradient, torch.tensor([0.1, 0.0, 0.04, 0.0, -0.2]))


def test_penalty_sees_the_bounded_moduli() -> None:
    module = constrained(0.5 * torch.eye(2), radius=0.9, delta=1.0)
    assert sp.penalty(module).item() == pytest.approx(2 * 0.5**2)


def test_penalty_of_a_model_is_the_sum() -> None:
    blocks = [(2, sp.ScaledCayley()), (4, sp.SchurForm(delta=1.0)), (3, None)]
    inside = sp.constrain(Holder(torch.zeros(9, 9)), "weight", sp.BlockTriangular(blocks, coupling=True))
    direct = constrained(torch.zeros(3, 3), delta=0.1)
    model = torch.nn.ModuleList(
        [
            inside,
            direct,
            torch.nn.Linear(2, 2),
            sp.constrain(torch.nn.Linear(2, 2), "weight", sp.ScaledCayley()),
        ]
    )
    assert sp.penalty(model).item() == pytest.approx(4 * 1.0 + 3 * 0.1)
    assert sp.penalty(torch.nn.Linear(2, 2)).item() == 0


def test_penalty_of_a_buffer() -> None:
    module = torch.nn.Module()
    module.register_buffer("weight", 0.5 * torch.eye(4))
    sp.constrain(module, "weight", sp.SchurForm(delta=1.0))
    assert sp.penalty(module).item() == pytest.approx(4 * 0.25)


def test_penalty_pulls_the_moduli_to_one() -> None:
    module = constrained(0.5 * torch.randn(6, 6), delta=1.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        sp.penalty(module).backward()
        optimizer.step()
    schur, originals = parts(module)
    torch.testing.assert_close(schur.eigenvalues(*originals).abs(), torch.ones(6))


def test_penalty_keeps_no_graph_alive() -> None:
    module = constrained(torch.randn(4, 4))
    saved = []

    class Box:
        def __init__(self, X):
            self.X = X
            saved.append(weakref.ref(self))

    with torch.autograd.graph.saved_tensors_hooks(Box, lambda box: box.X):
        penalty = sp.penalty(module)
    assert any(ref() is not None for ref in saved)
    del penalty
    gc.collect()
    assert all(ref() is None for ref in saved)


# Counts, groups, errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["exact", "paper"])
@pytest.mark.parametrize("P", [None, sp.ScaledCayley()], ids=["exponential", "Cayley"])
def test_free_parameters_are_those_of_any_matrix(form, P) -> None:
    for W in (torch.randn(7, 7), torch.eye(6), torch.randn(12, 4)):
        module = constrained(W, P=P, form=form)
        assert sp.num_free_parameters(module) == W.numel()
    # The paper: N(N-1)/2 for T, N/2 for each of γ and θ, beside P.
    module = sp.constrain(Holder(torch.empty(6, 6)), "weight", sp.SchurForm(P=P, form="paper"), init="paper")
    *_, last = module.parametrizations.weight.parameters(recurse=False)
    last.requires_grad_(False)
    assert sp.num_free_parameters(module) == 15 + 3 + 3
    next(module.parametrizations.weight.parameters(recurse=False)).requires_grad_(False)
    assert sp.num_free_parameters(module) == 3 + 3


def test_a_rate_of_its_own_for_p() -> None:
    rnn = sp.nn.NNRNN(2, 6)
    _, slow = sp.param_groups(rnn, 1e-3, 1e-4, constrained=sp.SkewExponential)
    assert slow["params"] == [rnn.cells[0].parametrizations.weight_hh.original4]
    _, slow = sp.param_groups(rnn, 1e-3, 1e-4)
    assert len(slow["params"]) == 5


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"form": "literal"}, "form: expected.*got 'literal'"),
        ({"radius": 0.0}, r"radius: expected.*got 0\.0"),
        ({"departure": math.inf}, "departure: expected.*got inf"),
        ({"radius": 1.0, "form": "paper"}, r"radius: expected.*got 1\.0"),
        ({"departure": 1.0, "form": "paper"}, r"departure: expected.*got 1\.0"),
        ({"radius": "present"}, "radius: expected.*got 'present'"),
        ({"radius": (0.1, 0.5, 0.9)}, r"radius: expected.*got \(0\.1, 0\.5, 0\.9\)"),
        ({"abscissa": [0.0]}, r"abscissa: expected.*got \[0\.0\]"),
        ({"departure": "a"}, "departure: expected.*got 'a'"),
        ({"delta": None}, "delta: expected.*got None"),
        ({"delta": -1.0}, r"delta: expected.*got -1\.0"),
        ({"P": torch.nn.Identity()}, "P: expected.*got"),
    ],
)
def test_bounds_and_forms_that_do_not_fit_are_named(arguments, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.SchurForm(**arguments)


@pytest.mark.parametrize("init", [None, "paper"])
def test_complex_weight_is_refused(init) -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"SchurForm: expected.*got torch\.complex64"):
        sp.constrain(Holder(torch.eye(3, dtype=torch.complex64)), "weight", sp.SchurForm(), init=init)


def test_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NotFiniteError, match=r"SchurForm: expected.*got"):
        constrained(torch.full((3, 3), torch.nan))


def test_a_failed_assignment_changes_nothing() -> None:
    module = constrained(torch.randn(6, 6), radius=9.0)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(InManifoldError):
        module.weight = 10 * torch.eye(6)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_inside_a_block_triangular_weight() -> None:
    blocks = [(3, sp.ScaledCayley()), (5, sp.SchurForm(radius=0.9))]
    module = sp.constrain(Holder(torch.randn(8, 8)), "weight", sp.BlockTriangular(blocks, coupling=True))
    assert orthogonality_defect(module.weight[:3, :3]).max() < 1e-5
    assert radii(module.weight[3:, 3:]).item() <= 0.9 + 1e-4
    module.weight = module.weight.detach()
    module.weight.square().sum().backward()


@pytest.mark.parametrize(
    ("kwargs", "outside"),
    [
        ({"radius": 0.9}, lambda W: torch.linalg.eigvals(W).abs().max() - 0.9),
        ({"abscissa": -0.2}, lambda W: torch.linalg.eigvals(W).real.max() + 0.2),
    ],
    ids=["radius", "abscissa"],
)
def test_bounds_hold_far_beyond_them_and_their_gradient_does_not_vanish(kwargs, outside) -> None:
    module = constrained(torch.randn(8, 8, dtype=torch.float64), departure=3.0, **kwargs)
    schur, originals = parts(module)
    for scale in (1.0, 50.0, 1e8, 1e15):
        originals[1].data = scale * torch.randn(8, dtype=torch.float64)
        assert outside(module.weight.detach()) <= 1e-9
    originals[1].data = torch.full((8,), schur.radius or schur.abscissa).double()
    values = module.weight.diagonal().sum()
    (gradient,) = torch.autograd.grad(values, originals[1])
    read = schur.pairs.roll(1, -1) == 0
    assert gradient[read].abs().min() > 1e-3


def test_both_kinds_of_bounds() -> None:
    with pytest.raises(ValueError, match=r"radius, abscissa: expected.*got"):
        sp.SchurForm(radius=0.9, abscissa=0.0)
    with pytest.raises(ValueError, match=r"radius: expected.*got"):
        sp.SchurForm(radius=(0.9, 0.5))
    with pytest.raises(ValueError, match=r"abscissa: expected.*got inf"):
        sp.SchurForm(abscissa=math.inf)


def test_penalty_and_eigenvalues_in_half_precision() -> None:
    module = constrained(0.5 * torch.randn(4, 4, dtype=torch.bfloat16), delta=1.0)
    schur, originals = parts(module)
    eigenvalues = schur.eigenvalues(*originals)
    assert eigenvalues.dtype == torch.complex64
    assert torch.equal(eigenvalues, schur.eigenvalues(*(original.float() for original in originals)))
    assert sp.penalty(module).dtype == torch.float32


@pytest.mark.parametrize(
    ("std", "dtype"),
    [(1.0, torch.float64), (60.0, torch.float32), (1e5, torch.float32), (1e5, torch.float64)],
)
def test_every_finite_original_gives_a_stable_weight(dtype, std) -> None:
    torch.manual_seed(0)
    layer = sp.constrain(
        torch.nn.Linear(6, 6, dtype=dtype), "weight", sp.SchurForm(radius=0.9, departure=2.0)
    )
    originals = list(layer.parametrizations.weight.parameters(recurse=False))
    with torch.no_grad():
        for t in originals:
            t.normal_(std=std)
    assert torch.linalg.eigvals(layer.weight.detach().double()).abs().max() < 0.9 * 1.001
    gradients = torch.autograd.grad(layer.weight.sum(), originals)
    assert all(bool(g.isfinite().all()) for g in gradients)


@pytest.mark.parametrize("bound", [{"abscissa": -0.1}, {"radius": 0.5}], ids=str)
def test_eigenvalues_beyond_the_bound_of_a_schur_form_keep_a_derivative(bound) -> None:
    module = constrained(torch.diag(torch.tensor([-0.3, -0.42, -0.46])), **bound)
    gamma = module.parametrizations.weight.original1
    with torch.no_grad():
        gamma.copy_(gamma.abs() + 0.7)  # Reflected at the bound; none at a corner, such as 0.5 + 2 · 0.3.
    (g,) = torch.autograd.grad(module.weight.diagonal().sum(), gamma)
    assert (g.abs() > 0.1).all()
