"""The largest singular value, followed: near, from above, by few products, and again after it was lost."""

import pytest
import torch

import spectral_param as sp
from spectral_param._eigen import norm, proof
from spectral_param._eigen.norm import NormFollower
from spectral_param._eigen.singular import leading_pair, recorded_norm


@pytest.fixture
def products(monkeypatch):
    calls = []
    product, below = norm._times_less, proof.is_below
    monkeypatch.setattr(norm, "_times_less", lambda *args: calls.append("product") or product(*args))
    monkeypatch.setattr(proof, "is_below", lambda *args: calls.append("cholesky") or below(*args))
    return calls


def gaussian(m, n, dtype=torch.float32, seed=0):
    return torch.randn(m, n, dtype=dtype, generator=torch.Generator().manual_seed(seed)) / n**0.5


def true(T):
    return torch.linalg.svdvals(T.to(torch.complex128 if T.is_complex() else torch.float64))[..., 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(200, 100), (150, 150), (2, 130, 120)])
def test_a_path_without_a_gap_needs_few_products_and_no_decomposition(shape, dtype, products) -> None:
    """A Gaussian matrix has many singular values near the largest one."""
    T = gaussian(*shape[-2:], dtype).expand(shape).clone()
    follower, counts = NormFollower("tracking"), []
    for step in range(8):
        products.clear()
        (sigma, v), bound = follower.follow(T.clone())
        exact = true(T)
        assert (sigma <= exact * (1 + 1e-6)).all()
        assert (bound >= exact * (1 - 5e-7)).all()
        assert (bound <= exact * (1 + 1.5e-6)).all()
        u = (T @ v[..., None])[..., 0]
        torch.testing.assert_close(u.abs().square().sum(-1).sqrt().double(), sigma, rtol=1e-5, atol=0)
        counts.append(len(products))
        assert "cholesky" not in products
        T += 1e-4 * gaussian(*shape[-2:], dtype, seed=step + 1)
    assert max(counts[2:]) <= (30 if dtype == torch.float64 else 20)
    assert sum(counts[2:]) / len(counts[2:]) < counts[0]  # A proof that fails takes a second round.


def test_a_plateau_is_proven_by_cholesky_and_left_again(products) -> None:
    Q = torch.linalg.qr(gaussian(140, 120)).Q
    follower = NormFollower("tracking")
    for _ in range(3):
        products.clear()
        norms = follower.follow(Q.clone())
        assert "cholesky" in products
        assert abs(norms.bound - 1) <= 1e-6
    for step in range(4):  # A gap opens.
        products.clear()
        T = Q + 2 * torch.outer(Q[:, 0], torch.eye(120)[0]) + 1e-4 * gaussian(140, 120, seed=step)
        T[:, 1:] *= torch.linspace(1, 0.1, 119)
        norms = follower.follow(T)
        assert abs(norms.bound / true(T) - 1) <= 1e-6
    assert "cholesky" not in products


def test_a_leader_from_outside_is_found() -> None:
    """A singular value outside of the block grows from step to step until it leads."""
    U, sigma, Vh = torch.linalg.svd(gaussian(200, 100), full_matrices=False)
    follower = NormFollower("tracking")
    for step in range(12):
        sigma[-1] = 0.25 * step
        T = (U * sigma) @ Vh
        (value, _), bound = follower.follow(T)
        assert abs(value / true(T) - 1) <= 1e-6
        assert abs(bound / true(T) - 1) <= 1.5e-6


@pytest.mark.parametrize("factor", [1.001, 1.1, 3.0])
def test_a_leader_that_jumps_up_outside_is_found_at_once(factor) -> None:
    """The block is exact for all other vectors, so its residuals say nothing of the new leader."""
    U, _, Vh = torch.linalg.svd(gaussian(200, 100), full_matrices=False)
    sigma = torch.linspace(1, 0.01, 100)
    follower = NormFollower("tracking")
    for _ in range(5):
        follower.follow((U * sigma) @ Vh)
    sigma[-1] = factor
    T = (U * sigma) @ Vh
    (value, _), bound = follower.follow(T)
    assert abs(value / true(T) - 1) <= 1e-6
    assert abs(bound / true(T) - 1) <= 1.5e-6


@pytest.fixture
def drawn(monkeypatch):
    calls = []
    draw = norm._normal
    monkeypatch.setattr(norm, "_normal", lambda *args: calls.append(args) or draw(*args))
    return calls


def gapped(seed=0):
    """Return singular vectors, and singular values with gaps after the first and the twelfth."""
    U, sigma, Vh = torch.linalg.svd(gaussian(200, 100, seed=seed), full_matrices=False)
    sigma = torch.cat([torch.linspace(1, 0.8, 12), torch.linspace(0.5, 0.1, 88)])
    return U, sigma, Vh


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_weight_that_moves_little_needs_no_random_vectors(batch, drawn) -> None:
    U, sigma, Vh = gapped()
    T = ((U * sigma) @ Vh).expand(*batch, 200, 100)
    follower = NormFollower("tracking")
    for step in range(20):
        T = T + 1e-6 * gaussian(200, 100, seed=step)
        if step == 4:
            drawn.clear()
        (value, _), bound = follower.follow(T)
        assert (abs(value / true(T) - 1) <= 1e-6).all()
        assert (bound >= true(T) * (1 - 5e-7)).all()
        assert (bound <= true(T) * (1 + 1.5e-6)).all()
    assert not drawn


def test_what_grows_slowly_outside_the_block_is_noticed(drawn) -> None:
    """Each move is small enough for the old bound. Their sum is not."""
    U, sigma, Vh = gapped()
    follower, skipped = NormFollower("tracking"), 0
    for _ in range(120):
        sigma[-1] += 0.01
        T = (U * sigma) @ Vh
        drawn.clear()
        (value, _), bound = follower.follow(T)
        skipped += not drawn
        assert abs(value / true(T) - 1) <= 1e-6
        assert bound >= true(T) * (1 - 5e-7)
    assert skipped >= 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_power_steps_suffice_where_there_is_a_gap(batch, dtype, drawn, monkeypatch) -> None:
    """Each move turns the leading vector by more than the tolerance; their sum is larger than the gap."""
    ritz = norm._ritz
    monkeypatch.setattr(norm, "_ritz", lambda *args: drawn.append(args) or ritz(*args))
    U, sigma, Vh = torch.linalg.svd(gaussian(200, 100, dtype), full_matrices=False)
    sigma[0] = 1.1 * sigma[1]
    v = Vh[0]
    T = ((U * sigma) @ Vh).expand(*batch, 200, 100)
    follower, without, first = NormFollower("tracking"), 0, None
    for step in range(60):
        x = gaussian(200, 200, dtype, seed=step)[:, 0]
        T = T + 3e-3 * x[:, None] * v[..., None, :].conj()
        drawn.clear()
        (value, v), bound = follower.follow(T)
        without += not drawn
        assert (abs(value / true(T) - 1) <= 1e-6).all()
        assert (bound >= true(T) * (1 - 5e-7)).all()
        assert (bound <= true(T) * (1 + 1.5e-6)).all()
        image = torch.linalg.vector_norm((T @ v[..., None])[..., 0], dim=-1)
        torch.testing.assert_close(image.double(), value, rtol=1e-6, atol=0)
        first = v if first is None else first
    assert without >= 45
    turned = v - first * (first.conj() * v).sum(-1, keepdim=True)
    assert (torch.linalg.vector_norm(turned, dim=-1) > 1e-3).all()


@pytest.mark.parametrize("move", [1e-6, 1e-3, 1e-1])
@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("shape", [(200, 100), (16, 4)])
def test_an_interrupted_run_continues_to_the_same_bits(shape, is_read, move) -> None:
    """Whether the weight of the checkpoint is read again before the next step, or not."""
    T = gapped()[0] @ torch.diag(gapped()[1]) @ gapped()[2] if shape == (200, 100) else gaussian(*shape)
    follower, restored = NormFollower("tracking"), NormFollower("tracking")
    for step in range(4):
        T = T + move * gaussian(*shape, seed=step)
        last = follower.follow(T)
    restored.load_state_dict(follower.state_dict(), strict=False)
    if is_read:
        again = restored.follow(T.clone())
        assert torch.equal(again.pair.vector, last.pair.vector)
        assert torch.equal(again.bound, last.bound)
    for step in range(6):
        T = T + move * gaussian(*shape, seed=10 + step)
        (value, v), bound = follower.follow(T)
        (other, w), other_bound = restored.follow(T.clone())
        assert torch.equal(v, w)
        assert torch.equal(value, other)
        assert torch.equal(bound, other_bound)


def test_a_bound_of_another_block_is_not_used(drawn) -> None:
    U, sigma, Vh = gapped()
    T = (U * sigma) @ Vh
    follower = NormFollower("tracking")
    for step in range(4):
        T = T + 1e-7 * gaussian(200, 100, seed=step)
        follower.follow(T)
    drawn.clear()
    follower.block.copy_(Vh[-16:].mT)  # As loading or averaging may do.
    (value, _), bound = follower.follow(T + 1e-7)
    assert drawn
    assert abs(value / true(T) - 1) <= 1e-6
    assert abs(bound / true(T) - 1) <= 1.5e-6


@pytest.mark.parametrize("exponent", [-60, -40, -38, -20, -14, 0, 14, 20, 38, 40, 60])
def test_the_size_of_a_weight_does_not_weaken_the_proof(exponent) -> None:
    """The square of a residual is of the order σ⁴, which underflows in single precision sooner than σ."""
    follower = NormFollower("tracking")
    T = 2.0**exponent * gaussian(130, 97)
    for step in range(25):
        T = T + 0.15 * T.abs().max() * gaussian(130, 97, seed=step + 1)
        (value, _), bound = follower.follow(T)
        assert abs(value / true(T) - 1) <= 1e-6
        assert abs(bound / true(T) - 1) <= 1.5e-6


@pytest.mark.parametrize(
    "T", [torch.zeros(120, 100), torch.full((120, 100), torch.nan), 1e-30 * torch.ones(120, 100)]
)
def test_matrices_that_cannot_be_followed(T) -> None:
    follower = NormFollower("tracking")
    for _ in range(2):
        (sigma, _), bound = follower.follow(T)
        torch.testing.assert_close(
            sigma,
            true(T) if T.isfinite().all() else torch.tensor(torch.nan).double(),
            equal_nan=True,
            rtol=1e-6,
            atol=0,
        )
        torch.testing.assert_close(bound, sigma, equal_nan=True, rtol=1e-6, atol=0)
    good = gaussian(120, 100)
    assert abs(follower.follow(good).bound / true(good) - 1) <= 1e-6


def test_the_same_bits_in_any_process_and_no_use_of_the_global_generator() -> None:
    T = gaussian(130, 110)
    found = []
    for _ in range(2):
        torch.manual_seed(len(found))
        before = torch.get_rng_state()
        follower = NormFollower("tracking")
        found.append([follower.follow(T + step * 1e-3) for step in range(3)])
        assert torch.equal(torch.get_rng_state(), before)
    for (a, bound_a), (b, bound_b) in zip(*found, strict=True):
        assert torch.equal(a.vector, b.vector)
        assert torch.equal(bound_a, bound_b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_lapack_and_the_recorded_norm(dtype, scale) -> None:
    T = scale * gaussian(3 * 7, 5, dtype).reshape(3, 7, 5)
    torch.testing.assert_close(leading_pair(T).value / scale, true(T / scale), rtol=1e-6, atol=0)
    recorded = recorded_norm(T.requires_grad_())
    torch.testing.assert_close(recorded.double() / scale, true(T.detach() / scale), rtol=1e-6, atol=0)
    (g,) = torch.autograd.grad(recorded.sum(), T)
    assert abs(torch.linalg.matrix_norm(g) - 1).max() <= 1e-5
    assert recorded_norm(torch.zeros(3, 2)) == 0


@pytest.mark.parametrize("shape", [(130, 120), (120, 200), (6, 5)])
def test_numbers_and_waits_on_a_device(shape) -> None:
    # An older torch has no hook for Python backends.
    standin = pytest.importorskip("benchmarks.standin", exc_type=ImportError)
    layers = []
    for device in ("cpu", standin.DEVICE):
        with standin.counting():
            layer = sp.constrain(
                sp.testing.Holder(gaussian(*shape).to(device)), "weight", sp.SpectralNorm(0.5, mode="equal")
            )
            layers.append(layer)
    waits = []
    for step in range(5):
        for layer in layers:
            with torch.no_grad(), standin.counting() as asked:
                original = layer.parametrizations.weight.original
                original += 1e-5 * gaussian(*shape, seed=step).to(original.device)
                asked.waits = 0
                layer.weight  # noqa: B018
                if layer is layers[1]:
                    waits.append(asked.waits)
        with standin.counting():
            torch.testing.assert_close(layers[1].weight.detach().cpu(), layers[0].weight.detach())
    assert max(waits[1:]) <= 3, waits
