"""The distance of a weight from orthogonality, and records of a measure during training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param._matrices import identity_like
from spectral_param.analysis._matrices import matrices
from spectral_param.functional._checks import with_arrays


@with_arrays
def orthogonality_error(W: Tensor) -> Tensor:
    """Return :math:`‖W^H W - I‖_F`, the orthogonality (unitary) score of the scoRNN paper.

    For a square weight it is equal to :math:`‖W W^H - I‖_F`. For a tall weight the score measures the
    columns, for a wide weight the rows.

    Computed in double precision, so that the result shows the rounding errors of W and not of the
    computation. Source: Helfrich, Willmott and Ye, "Orthogonal Recurrent Neural Networks with Scaled Cayley
    Transform" (ICML 2018), appendix B.

    Args:
        W: Matrices ``(..., m, n)``, real or complex. The weights of an LSTM or GRU are stacks of gates: pass
            ``weight.unflatten(0, (4, -1))``, with 3 for a GRU.

    Returns:
        Real tensor of shape ``(...)``, NaN where a matrix has NaN entries.

    Raises:
        NotAMatrixError: If W has fewer than two dimensions or no entries.
        UnsupportedDtypeError: If W is not floating point or complex.

    Example:
        >>> layer = spectral_param.constrain(torch.nn.Linear(4, 8), "weight", spectral_param.ScaledCayley())
        >>> spectral_param.analysis.orthogonality_error(layer.weight).item() < 1e-5
        True
        >>> spectral_param.analysis.orthogonality_error(2 * torch.eye(4)).item()
        6.0
    """
    W = matrices(W, "orthogonality_error")
    W = W.mH if W.shape[-2] < W.shape[-1] else W
    return torch.linalg.matrix_norm(W.mH @ W - identity_like(W))


class Recorder:
    """A record of one measure during training.

    Args:
        measure: Function without arguments that returns a tensor, of the same shape at each call.

    Example:
        >>> rnn = spectral_param.nn.ScoRNN(1, 8)
        >>> error = spectral_param.analysis.orthogonality_error
        >>> recorder = spectral_param.analysis.Recorder(lambda: error(rnn.cells[0].weight_hh))
        >>> optimizer = torch.optim.RMSprop(rnn.parameters())
        >>> for step in range(3):
        ...     recorder.record(step)
        ...     optimizer.zero_grad()
        ...     rnn(torch.randn(5, 2, 1))[0].square().sum().backward()
        ...     optimizer.step()
        >>> recorder.steps, recorder.values.shape
        (tensor([0, 1, 2]), torch.Size([3]))
    """

    def __init__(self, measure: Callable[[], Tensor]) -> None:
        self._measure = measure
        self._steps: list[int] = []
        self._found: list[Tensor] = []

    def record(self, step: int) -> None:
        """Measure now, and store the value under this number of the optimizer step."""
        value = self._measure().detach().clone()
        self._steps.append(step)
        self._found.append(value)

    @property
    def steps(self) -> Tensor:
        """The steps recorded so far, shape ``(records,)``."""
        return torch.tensor(self._steps, dtype=torch.int64, device="cpu")

    @property
    def values(self) -> Tensor:
        """The measured values, shape ``(records, ...)``."""
        if not self._found:
            return torch.empty(0, dtype=torch.float64, device="cpu")
        return torch.stack(self._found)
