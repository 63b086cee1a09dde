"""What all constraints to orthonormal columns keep: the nearest start, training, and either determinant."""

import pytest
import torch
from torch import Tensor, nn

import spectral_param as sp
from spectral_param.testing import Holder


def constrained(weight: Tensor, constraint: nn.Module) -> Holder:
    return sp.constrain(Holder(weight), "weight", constraint)


@pytest.mark.parametrize("shape", [(6, 6), (7, 3), (3, 7)])
@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.Householder, sp.SkewExponential, sp.SingularValues])
def test_registration_takes_the_nearest_weight_of_the_set(make, shape) -> None:
    W = torch.randn(shape, dtype=torch.float64)
    U, sigma, Vh = torch.linalg.svd(W, full_matrices=False)
    # Registration may move values from outside of the interval to a point just within it.
    nearest, atol = (
        (U @ Vh, 1e-12) if make is not sp.SingularValues else (U * sigma.clamp(0.99, 1.01) @ Vh, 1e-3)
    )
    torch.testing.assert_close(constrained(W, make()).weight.detach(), nearest, rtol=0, atol=atol)


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.Householder, sp.SkewExponential])
@pytest.mark.parametrize("shape", [(16, 16), (40, 12), (12, 40), (9, 8)])
def test_columns_stay_orthonormal_in_training(make, shape) -> None:
    module = constrained(torch.randn(shape, dtype=torch.float64), make())
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    target = torch.randn(shape, dtype=torch.float64)
    for _ in range(10):
        optimizer.zero_grad()
        (module.weight - target).square().sum().backward()
        optimizer.step()
    W = module.weight.detach()
    assert sp.analysis.orthogonality_error(W) <= 100 * max(shape) * torch.finfo(W.dtype).eps


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.Householder, sp.SkewExponential, sp.Givens])
def test_a_checkpoint_and_an_average_of_a_weight_of_the_other_determinant(make) -> None:
    Q = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    Q[0] *= torch.linalg.det(Q).sign()
    other = torch.cat([-Q[:1], Q[1:]])
    first, second = (constrained(W, make()) for W in (Q, other))
    averaged = torch.optim.swa_utils.AveragedModel(first, use_buffers=True)
    for module in (first, second):
        averaged.update_parameters(module)
    W = averaged.module.weight.detach()
    torch.testing.assert_close(W.mT @ W, torch.eye(5, dtype=W.dtype), rtol=0, atol=1e-12)
    first.load_state_dict(second.state_dict())
    torch.testing.assert_close(first.weight.detach(), other, rtol=0, atol=1e-12)
