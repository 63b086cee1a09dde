"""Faults that test_second_way.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "only: least squares that do not converge raise",
        "spectral_param/_matrices.py",
        "        U, s, Vh = _svd_again(M, full_matrices=False)\n        cut",
        "        raise\n        cut",
        "second_way",
    ),
    Fault(
        "restacked: a stack of matrices is not put together again",
        "spectral_param/_matrices.py",
        "np.stack(of).reshape(*M.shape[:-2], *of[0].shape)",
        "np.stack(of)[0]",
        "second_way",
    ),
    Fault(
        "eigh-only: eigenvalues of a Hermitian matrix that do not converge raise",
        "spectral_param/_matrices.py",
        "        values, vectors = _eigh_again(M)\n",
        "        raise\n",
        "second_way",
    ),
    Fault(
        "unlike: of the second way the eigenvalues of a stack are taken for its first matrix",
        "spectral_param/_matrices.py",
        "torch.linalg.eigvalsh: lambda M: _eigh_again(M)[0],",
        "torch.linalg.eigvalsh: lambda M: _eigh_again(M)[0][:1],",
        "second_way",
    ),
    Fault(
        "past: a decomposition goes past the helper",
        "spectral_param/dynamics/_data/coordinates.py",
        "svd(X)[2]",
        "np.linalg.svd(X, full_matrices=False)[2]",
        "every_decomposition",
    ),
)
