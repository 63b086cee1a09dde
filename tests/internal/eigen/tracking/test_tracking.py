"""The tracked eigentriple: as right as LAPACK at every step, on trajectories made to mislead it."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

import spectral_param as sp
from spectral_param._eigen import tracking
from spectral_param.errors import DegenerateEigenvalueWarning
from tests import matrices

N, STEPS = 80, 40


class Trajectories:
    """T at each step, by name. All but the drift have a spectrum that was put in by hand."""

    def __init__(self, dtype):
        self.rng = np.random.default_rng(0)
        self.complex = dtype.is_complex
        self.Q = self.orthogonal()
        self.N = 0.3 * np.triu(matrices.ginibre(N, self.rng), 1)
        self.rest = self.rng.uniform(-0.5, 0.5, N)
        self.drifting = self.ginibre()
        self.leader = self.ginibre()[:40, :40] * 0.3
        self.leader[0, :] = 0
        self.leader[0, 0] = 1
        self.crowd = np.linalg.qr(self.ginibre()[40:, 40:])[0]
        self.targets = [self.with_head(np.eye(1) * r) for r in (1.0, 3.0)] + [
            self.ginibre(),
            self.orthogonal(),
        ]

    def ginibre(self):
        G = matrices.ginibre(N, self.rng)
        return G + 1j * matrices.ginibre(N, self.rng) if self.complex else G

    def orthogonal(self):
        return np.linalg.qr(self.ginibre() if self.complex else matrices.ginibre(N, self.rng))[0]

    def with_head(self, *blocks):
        D = np.diag(self.rest).astype(complex if self.complex else float) + self.N
        k = 0
        for block in blocks:
            D[k : k + len(block), k : k + len(block)] = block
            k += len(block)
        return self.Q @ D @ self.Q.conj().T

    def pair(self, r, t):
        """Eigenvalues r e^{±it}; without the conjugate, which would be a tie, for complex matrices."""
        if self.complex:
            return np.array([[r * np.exp(1j * t)]])
        return r * np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])

    def overtaken(self, t):
        return self.with_head(self.pair(1, 0.7), self.pair(0.6 + 0.0203 * t, 2.1))

    def drift(self, t):
        self.drifting = self.drifting + 0.02 * self.ginibre()
        return self.drifting

    def near_defective(self, t):
        return self.with_head(np.array([[1.0, 1.0], [1e-3 * (1 - t / 30) ** 2, 1.0]]))

    def collision(self, t):
        return self.with_head(np.array([[1.0, 1e-2], [4e-4 * (t - 30), 1.0]]))

    def jump(self, t):
        return self.targets[(t // 10) % 4] + 1e-4 * t * self.targets[2]

    def appearing(self, t):
        return self.with_head(np.eye(1), np.eye(1) * (0.1 if t % 20 < 10 else 1.3))

    def decoupled_crowd(self, t):
        """Many eigenvalues outgrow the leader in one step, in a block that it knows nothing of."""
        T = np.zeros_like(self.crowd, shape=(N, N))
        T[:40, :40] = self.leader
        T[40:, 40:] = self.crowd * (0.3 if t % 30 < 14 else 1.3)
        return T

    def hidden_crowd(self, t):
        return self.Q @ self.decoupled_crowd(t) @ self.Q.conj().T

    def crowded(self, t):
        """40 pairs whose moduli, in descending order, differ by less than a hundredth."""
        return self.with_head(*(self.pair(0.994**k, 0.07 * k + 0.01 * t) for k in range(40)))

    def tiny(self, t):
        return 1e-20 * self.overtaken(t)

    def huge(self, t):
        return 1e20 * self.overtaken(t)


NAMES = [
    "overtaken",
    "drift",
    "near_defective",
    "collision",
    "jump",
    "appearing",
    "decoupled_crowd",
    "hidden_crowd",
    "crowded",
    "tiny",
    "huge",
]


@pytest.fixture
def dense_calls(monkeypatch):
    calls = []
    dense = tracking.dominant_eigentriple_and_moduli
    monkeypatch.setattr(tracking, "dominant_eigentriple_and_moduli", lambda T: calls.append(1) or dense(T))
    return calls


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.complex128, 1e-12)],
)
def test_every_step_agrees_with_float64_lapack(name, dtype, tolerance) -> None:
    trajectory = getattr(Trajectories(dtype), name)
    state = None
    for t in range(STEPS):
        T = torch.from_numpy(np.asarray(trajectory(t))).to(dtype)
        triple, state = tracking.track(T, state)
        double = T.to(torch.complex128 if dtype.is_complex else torch.float64).numpy()
        expected = np.abs(np.linalg.eigvals(double)).max()
        error = abs(triple.eigenvalue.abs().item() / expected - 1)
        if error > tolerance:
            # LAPACK in this precision cannot do better: first order in the condition number.
            sensitivity = np.linalg.norm(double, 2) / expected * matrices.dominant_condition(double)
            assert error <= tolerance * sensitivity, f"step {t}"


@pytest.mark.parametrize(
    ("name", "most"),
    [("overtaken", 2), ("appearing", 25), ("collision", 12), ("drift", 12), ("crowded", 4)],
)
def test_lapack_is_asked_seldom(name, most, dense_calls) -> None:
    """A solver that always fell back would pass every other test here."""
    trajectory = getattr(Trajectories(torch.float32), name)
    state = None
    for t in range(STEPS):
        T = torch.from_numpy(trajectory(t)).float()
        _, state = tracking.track(T, state)
    assert 1 <= len(dense_calls) <= most


@pytest.mark.parametrize("name", ["overtaken", "appearing", "drift"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-2), (torch.float64, 1e-6), (torch.complex128, 1e-6)]
)
def test_gradients_agree_with_the_dense_solver(name, dtype, tolerance) -> None:
    trajectory = getattr(Trajectories(dtype), name)
    layers = [
        sp.constrain(torch.nn.Linear(N, N, False, dtype=dtype), "weight", sp.SpectralRadiusNorm(solver=s))
        for s in ("tracking", "dense")
    ]
    compared = 0
    for t in range(STEPS):
        T = torch.from_numpy(trajectory(t)).to(dtype)
        G = torch.randn(N, N, dtype=dtype)
        gradients = []
        for layer in layers:
            original = layer.parametrizations.weight.original
            original.data.copy_(T)
            gradients.append(torch.autograd.grad((layer.weight * G).real.sum(), original)[0])
        if is_tied(layers[0], T):
            continue
        compared += 1
        difference = torch.linalg.matrix_norm(gradients[0] - gradients[1])
        assert difference <= tolerance * torch.linalg.matrix_norm(gradients[1]), f"step {t}"
    assert compared > 3 * STEPS // 4


def is_tied(layer, T):
    """Whether other eigenvalues of T lead as much, by what the audit proves: the gradient is that of one."""
    triple = layer.parametrizations.weight[0]._memory.last.found.triple
    condition = (triple.left.conj() * triple.right).sum().abs().item()
    values = torch.linalg.eigvals(T.to(torch.promote_types(T.dtype, torch.float64)))
    leader = values[values.abs().argmax()]
    others = values[((values - leader).abs() > 1e-9) & ((values - leader.conj()).abs() > 1e-9)]
    delta = tracking.AUDIT_DELTA * torch.finfo(T.dtype).eps / condition
    return bool(others.abs().max() > (1 - delta) * leader.abs())


def test_gradient_of_a_tracked_radius_passes_gradcheck() -> None:
    parametrization = sp.SpectralRadiusNorm(solver="tracking").eval()
    T = torch.randn(18, 18, dtype=torch.float64, requires_grad=True)
    T.data[0] += 1  # separates an eigenvalue
    assert gradcheck(parametrization, (T,))


def test_audit_finds_what_the_blocks_do_not_hold() -> None:
    T = torch.diag(torch.cat([torch.tensor([2.0]), torch.linspace(1, 0.1, 49)]))
    identity = torch.eye(50)
    for first, expected in ((0, True), (1, False)):
        assert is_proven(T, identity[:, first : first + 16]) is expected


def test_audit_does_not_trust_what_has_not_converged() -> None:
    for largest, expected in ((0.5, True), (1.06, False)):
        T = torch.diag(torch.cat([torch.tensor([1.0, largest]), torch.full((98,), 0.4)]))
        block = torch.eye(100)[:, [0, *range(2, 17)]]
        # Half way between two eigenvectors: neither its Ritz value nor what is left shows more than 0.98.
        block[1, 1] = 1.0
        block = torch.linalg.qr(block).Q
        assert is_proven(T, block) is expected


def computed(steps):
    return tracking.together([steps])[0]


def compressed(block, image):
    """Of a symmetric T."""
    rows, images = block.mT, image.mT
    return computed(tracking._compressed(rows, rows, [(images, images)], [image.amax()]))[0][0]


def is_proven(T, block, seed=0):
    """Audit a symmetric T."""
    image = T @ block
    compression = compressed(block, image)
    ritz = tracking._rayleigh_ritz(compression, 0.0, T.dtype)
    assert ritz.shortfall <= 0
    generator = torch.Generator().manual_seed(seed)
    power = tracking._power(T, 0)
    return computed(tracking._audit(power, block.mT, block.mT, ritz, compression, 0.0, generator)) <= 0


@pytest.mark.parametrize("squarings", [0, 1, 2])
def test_audit_of_an_eigenvalue_next_to_the_leader(squarings) -> None:
    """Outside the blocks: it is proven to be smaller, or it is not proven; larger it never is."""
    found = []
    for outside in (0.5, 0.8, 0.99, 1.001, 1.01, 1.2):
        T = torch.diag(torch.cat([torch.linspace(0.7, 0.2, 119), torch.tensor([outside])]).double())
        T[0, 0] = 1.0
        block = torch.eye(120, dtype=torch.float64)[:, :16]
        image = T @ block
        compression = compressed(block, image)
        ritz = tracking._rayleigh_ritz(compression, 0.0, T.dtype)
        generator = torch.Generator().manual_seed(0)
        power = tracking._power(T, squarings)
        of_power = compressed(block, power.matrix @ block)
        log2_scale = float(power.log2_scale or 0)
        audit = tracking._audit(power, block.mT, block.mT, ritz, of_power, log2_scale, generator)
        shortfall = computed(audit)
        found.append(shortfall <= 0)
    assert found[:2] == [True, True]
    assert not any(found[3:])


@pytest.mark.parametrize("seed", range(5))
def test_resolvent_bound_of_the_derivation(seed) -> None:
    """(3) against the norm of the inverse, on the circle where it is asked, for a non-normal A."""
    size, delta = 2.0, 1e-3  # θ₁, in units of P.

    def bound(A, rest):
        P = size * torch.block_diag(torch.eye(2), A).double()
        rows = torch.eye(len(P), dtype=torch.float64)[:2]
        inside = tracking._Inside(np.eye(2), np.eye(2), np.ones(2), np.zeros(2), size)
        generator = torch.Generator().manual_seed(seed)
        # Limit 0: products until more would not help.
        steps = tracking._bounded_resolvent(P, rows, rows, inside, rest, 0.0, delta, 20.0, generator)
        return computed(steps)

    A = 0.5 * torch.eye(12) + torch.diag(torch.full((11,), 0.8), 1)
    angles = torch.polar(torch.full((64,), 1 - delta).double(), torch.linspace(0, 6.28, 64).double())
    inverses = torch.linalg.inv(angles[:, None, None] * torch.eye(12) - A)
    worst = torch.linalg.matrix_norm(inverses, 2).max().item()
    assert worst <= bound(A, rest=0.9) <= 20 * worst, "‖Z‖/τ is at most about 12"
    assert bound(A, rest=1e-6) == np.inf, "powers still grow"
    assert bound(A + 0.51 * torch.eye(12), rest=0.9) == np.inf, "an eigenvalue is outside"


def f(z, A, products, theta):
    """(1) of the derivation."""
    M = np.linalg.norm(np.linalg.inv(z * np.eye(len(A)) - A), 2)
    return M * (products / abs(z - theta)).sum()


def test_eigenvalues_outside_the_discs_of_the_derivation() -> None:
    """Each eigenvalue of a random block matrix has f(z) >= 1 for the true M."""
    rng = np.random.default_rng(0)
    excluded = 0
    for _ in range(200):
        theta = rng.uniform(-1, 1, 3)
        A = 0.4 * matrices.ginibre(5, rng)
        E, X = 0.1 * rng.standard_normal((5, 3)), 0.1 * rng.standard_normal((3, 5))
        P = np.block([[np.diag(theta), X], [E, A]])
        products = np.linalg.norm(E, axis=0) * np.linalg.norm(X, axis=1)
        values = np.linalg.eigvals(P)
        assert min(f(z, A, products, theta) for z in values) >= 1 - 1e-9
        excluded += sum(f(z, A, products, theta) < 1 for z in 1.5 * rng.standard_normal(20))
    assert excluded > 1000, "the discs are not everything"


def test_not_finite_in_between() -> None:
    trajectory = Trajectories(torch.float32)
    state = None
    for t in range(20):
        T = torch.from_numpy(trajectory.overtaken(t)).float()
        if t % 5 == 3:
            T[1, 2] = (torch.nan, torch.inf)[t % 2]
        triple, state = tracking.track(T, state)
        assert triple.eigenvalue.isnan() == (t % 5 == 3)


def test_small_zero_and_nilpotent_matrices() -> None:
    for T in (torch.randn(5, 5), torch.zeros(40, 40), torch.diag(torch.ones(39), 1), torch.randn(1, 1)):
        state = None
        for _ in range(4):
            triple, state = tracking.track(T, state)
            torch.testing.assert_close(triple.eigenvalue.abs(), torch.linalg.eigvals(T).abs().max())


def test_matrices_of_a_batch_by_themselves() -> None:
    batch = torch.randn(3, 40, 40)
    together = sp.SpectralRadiusNorm(solver="tracking")
    alone = [sp.SpectralRadiusNorm(solver="tracking") for _ in range(3)]
    for t in range(6):
        T = batch + 0.01 * t
        W = together(T)
        for i in range(3):
            assert torch.equal(W[i], alone[i](T[i]))


def test_defective_matrix_is_left_to_lapack() -> None:
    T = torch.zeros(60, 60)
    T[:2, :2] = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    module = sp.SpectralRadiusNorm(solver="tracking")
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for t in range(4):
            module(T * (1 + 0.1 * t))
    assert [w.category for w in record] == [DegenerateEigenvalueWarning]


def test_auto_says_what_it_chose() -> None:
    for n, chosen in ((64, "dense"), (128, "tracking")):
        layer = sp.constrain(torch.nn.Linear(n, n), "weight", sp.SpectralRadiusNorm())
        assert f"solver='auto: {chosen}'" in repr(layer)


@pytest.mark.parametrize("exponent", [-66, 66])
@pytest.mark.parametrize("name", ["overtaken", "hidden_crowd"])
def test_powers_of_two_change_nothing(name, exponent) -> None:
    found = []
    for power in (0, exponent):
        trajectory = getattr(Trajectories(torch.float32), name)
        state = None
        for t in range(40):
            T = torch.from_numpy(np.asarray(trajectory(t))).float() * 2.0**power
            triple, state = tracking.track(T, state)
            found.append(triple.eigenvalue.abs().item() * 2.0**-power)
    for here, there in zip(found[:40], found[40:], strict=True):
        assert here == pytest.approx(there, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_next_to_the_largest_number(dtype, dense_calls) -> None:
    T = torch.randn(64, 64, dtype=dtype) / 64
    T[0, 0] = 1.0
    triple, state = tracking.track(T, None)
    dense_calls.clear()
    huge = T * (0.75 * torch.finfo(dtype).max / T.abs().max())
    triple, _ = tracking.track(huge, state)
    exact = torch.linalg.eigvals((huge / 2.0**100).double()).abs().max() * 2.0**100
    torch.testing.assert_close(triple.eigenvalue.abs(), exact.to(dtype))
    assert not dense_calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [0.02, 0.04, 0.05, 0.06, 0.08])
@pytest.mark.parametrize("seed", range(3))
def test_an_eigenvalue_that_comes_from_outside_the_blocks(dtype, rate, seed, dense_calls) -> None:
    """T is normal and moves slowly, so few sweeps do and the newcomer shows in the audits."""
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(120, 120, generator=generator, dtype=torch.float64)).Q
    spectrum = torch.linspace(0.7, 0.05, 120, dtype=torch.float64)
    spectrum[0] = 1.0
    state = None
    for t in range(60):
        spectrum[21] = min(0.05 + rate * max(0, t - 20), 1.4)
        T = ((Q * spectrum) @ Q.mT).to(dtype)
        triple, state = tracking.track(T, state)
        torch.testing.assert_close(
            triple.eigenvalue.abs().double(), spectrum.max(), rtol=30 * torch.finfo(dtype).eps, atol=0
        )
    assert len(dense_calls) <= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_following_goes_on_after_a_jump(dtype, dense_calls) -> None:
    """A failed attempt asks for more sweeps, not for the same few again."""
    rng, state = np.random.default_rng(0), None
    Q = np.linalg.qr(matrices.ginibre(N, rng))[0]
    spectra = rng.uniform(-0.7, 0.7, (4, N))
    for t in range(120):
        spectrum = spectra[t // 30]
        spectrum[0] = 1 + t / 30
        T = torch.from_numpy((Q * spectrum) @ Q.T + 1e-3 * matrices.ginibre(N, rng)).to(dtype)
        _, state = tracking.track(T, state)
    assert len(dense_calls) <= 15


def test_no_more_waiting_once_the_leading_eigenvalues_have_moved_apart(dense_calls) -> None:
    torch.manual_seed(0)
    close, apart = torch.randn(100, 100), torch.randn(100, 100) / 10
    apart[0, 0] = 5
    waiting = tracking.State(torch.zeros(100, 16), torch.zeros(100, 16), 0.9, failures=5, wait=30)
    assert tracking.track(close, waiting)[1].wait == 29
    _, state = tracking.track(apart, waiting)
    assert state.wait == 0
    before = len(dense_calls)
    assert tracking.track(apart * 1.001, state)[1].regular
    assert len(dense_calls) == before


def test_a_zero_matrix_in_a_batch_does_not_lose_the_state_of_the_others() -> None:
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.randn(2, 40, 40))
    sp.constrain(layer, "weight", sp.SpectralRadiusNorm(solver="tracking"))
    with torch.no_grad():
        layer.parametrizations.weight.original[1] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateEigenvalueWarning)
        for _ in range(4):
            with torch.no_grad():
                layer.parametrizations.weight.original[0, 0] += 1
                layer.weight  # noqa: B018
    numbers = layer.parametrizations.weight[0].tracking.numbers
    steps = numbers[:, tracking.NUMBERS.index("step")]
    first, second = steps.tolist()
    assert first == second >= 5
