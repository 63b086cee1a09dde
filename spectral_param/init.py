"""Initialisations in the style of ``torch.nn.init``: each fills a tensor in place and returns it.

The functions fill the *weight*. Pass one to :func:`spectral_param.constrain` as ``init=``, or call it before
the constraint is registered.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn

from spectral_param import _guesses
from spectral_param._eigen import sparse
from spectral_param._matrices import Array
from spectral_param._precision import to_double, to_like
from spectral_param.errors import NotFiniteError, NotProvenError, UnsupportedDtypeError
from spectral_param.functional._checks import check_choices, is_finite, square_blocks
from spectral_param.functional._contraction import (
    ContractionCertificate,
    certificate,
    coordinates,
    is_finite_matrix,
    matrices_of,
)
from spectral_param.functional._diagonal_scaling import scaled
from spectral_param.functional._gate_nearest import move_gates_
from spectral_param.functional._gate_scaling import scale_gates_
from spectral_param.functional._network_contraction import Contraction
from spectral_param.functional._proven_norm import norm_bound
from spectral_param.functional._sparse_weights import check_sparse, is_sparse, scaled_, to_scipy
from spectral_param.functional._spectral_radius import spectral_radius

__all__ = ["cayley_", "contracting_", "disc_", "echo_state_", "henaff_", "spectral_radius_"]

if not TYPE_CHECKING:  # Type checkers need no __getattr__.
    __getattr__ = _guesses.answers(__name__)

Weight = TypeVar("Weight")  # a tensor, an array or a scipy sparse matrix


def _rotations_(tensor: Tensor, angles: Tensor, moduli: Tensor | None = None) -> Tensor:  # (..., n // 2)
    """Fill with blocks γ_j [cos t_j, -sin t_j; sin t_j, cos t_j]; for odd n the last entry is γ, or 1."""
    n = tensor.shape[-1]
    if moduli is None:
        moduli = torch.ones((*tensor.shape[:-2], (n + 1) // 2), dtype=angles.dtype, device=angles.device)
    paired = moduli[..., : n // 2]
    even = torch.arange(0, n - 1, 2, device=tensor.device)
    with torch.no_grad():
        tensor.zero_()
        tensor[..., even, even] = (paired * angles.cos()).to(tensor.dtype)
        tensor[..., even + 1, even + 1] = (paired * angles.cos()).to(tensor.dtype)
        tensor[..., even, even + 1] = (-paired * angles.sin()).to(tensor.dtype)
        tensor[..., even + 1, even] = (paired * angles.sin()).to(tensor.dtype)
        if n % 2:
            tensor[..., -1, -1] = moduli[..., -1].to(tensor.dtype)
    return tensor


def _uniform(
    tensor: Tensor, count: int, low: float, high: float, generator: torch.Generator | None
) -> Tensor:
    sample = torch.rand(
        (*tensor.shape[:-2], count),
        dtype=tensor.real.dtype,
        device=_source(tensor, generator),
        generator=generator,
    )
    return low + (high - low) * sample.to(tensor.device)


def _source(tensor: Tensor, generator: torch.Generator | None) -> torch.device:
    """Return where the random numbers for a tensor are drawn: a generator draws on its own device alone."""
    return tensor.device if generator is None else generator.device


def cayley_(tensor: Tensor, negative_ones: int = 0, generator: torch.Generator | None = None) -> Tensor:
    """Fill with scoRNN's orthogonal start: rotations by angles uniform in [0, π/2], times a diagonal D.

    Section 4.2 of Helfrich, Willmott and Ye (2018). The eigenvalues of the rotations lie on the right half of
    the unit circle; D = diag(1, …, 1, -1, …, -1) moves some of them to the left half.

    Args:
        tensor: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.
        negative_ones: Number of -1s at the end of D. 0, the default, is D = I. With n/2, the start of the
            networks of :mod:`spectral_param.nn`, the eigenvalues spread over the whole circle.
        generator: Source of randomness.

    Returns:
        The tensor.

    Raises:
        ValueError: If ``negative_ones`` is not an integer from 0 to n.
        NotSquareError: If the tensor is neither square nor a stack of square blocks.

    Example:
        >>> W = spectral_param.init.cayley_(torch.empty(6, 6), negative_ones=2)
        >>> torch.allclose(W @ W.mT, torch.eye(6), atol=1e-6)
        True
    """
    blocks = square_blocks(tensor, "cayley_")
    n = tensor.shape[-1]
    if isinstance(negative_ones, bool) or not isinstance(negative_ones, int) or not 0 <= negative_ones <= n:
        raise ValueError(f"negative_ones: expected an integer, 0 <= count <= n = {n}, got {negative_ones}.")
    _rotations_(blocks, _uniform(blocks, n // 2, 0, math.pi / 2, generator))
    with torch.no_grad():
        tensor[..., n - negative_ones :] *= -1
    return tensor


def henaff_(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill with an orthogonal matrix of 2x2 rotations by angles uniform in [-π, π).

    Henaff, Szlam and LeCun (2016), "Recurrent Orthogonal Networks and Long-Memory Tasks", in the
    block-diagonal form that expRNN and nnRNN start from.

    Args:
        tensor: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.
        generator: Source of randomness.

    Returns:
        The tensor.

    Raises:
        NotSquareError: If the tensor is neither square nor a stack of square blocks.

    Example:
        >>> W = spectral_param.init.henaff_(torch.empty(5, 5))
        >>> torch.allclose(W @ W.mT, torch.eye(5), atol=1e-6)
        True
    """
    blocks = square_blocks(tensor, "henaff_")
    _rotations_(blocks, _uniform(blocks, tensor.shape[-1] // 2, -math.pi, math.pi, generator))
    return tensor


def disc_(
    tensor: Tensor,
    uniform: Literal["modulus", "area"] = "modulus",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fill with a block-diagonal matrix whose eigenvalues γ e^{±it} lie in the unit disc.

    Eq. (5) of Helfrich and Ye (2020): t uniform in [0, π/2), γ uniform in [-1, 1).

    Args:
        tensor: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.
        uniform: ``"modulus"``, the default, draws γ uniformly, as the paper's equation does. The eigenvalues
            are then dense near 0 (density proportional to 1/r). ``"area"`` draws γ = ±sqrt(u) with u uniform,
            which is uniform over the disc, as the paper's text says.
        generator: Source of randomness.

    Returns:
        The tensor.

    Raises:
        ValueError: If ``uniform`` is neither of the two.
        NotSquareError: If the tensor is neither square nor a stack of square blocks.

    Example:
        >>> T = spectral_param.init.disc_(torch.empty(64, 64))
        >>> bool(spectral_param.functional.spectral_radius(T) <= 1)
        True
    """
    blocks = square_blocks(tensor, "disc_")
    if uniform not in ("modulus", "area"):
        raise ValueError(f"uniform: expected 'modulus' or 'area', got {uniform!r}.")
    n = tensor.shape[-1]
    angles = _uniform(blocks, n // 2, 0, math.pi / 2, generator)
    moduli = _uniform(blocks, (n + 1) // 2, -1, 1, generator)
    if uniform == "area":
        moduli = moduli.sign() * moduli.abs().sqrt()
    _rotations_(blocks, angles, moduli)
    return tensor


def spectral_radius_(
    tensor: Weight,
    radius: float = 1.0,
    generator: torch.Generator | None = None,
    *,
    mask: Tensor | None = None,
) -> Weight:
    """Give a weight the spectral radius ``radius``: fill a dense one at random, or scale a sparse one.

    A dense tensor is filled with Gaussian entries, which are then scaled: the usual start of a reservoir.
    With ``mask=W != 0`` the tensor keeps its zeros. A sparse weight keeps its pattern, and its entries are
    multiplied by one positive factor.

    The radius of a sparse weight is computed for each strongly connected component of its graph. Each of
    these radii is exact, or proven to a relative error of 1e-8, or computed by LAPACK from the component as a
    dense matrix. (``scipy.sparse.linalg.eigs(k=1)`` often misses the largest eigenvalue.)

    Args:
        tensor: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``; each
            square matrix is scaled by itself. Or one sparse matrix ``(n, n)``. A sparse tensor, of any
            layout, is scaled in place. A scipy sparse matrix or array is not changed: a scaled copy in the
            same format is returned, so the entries may be integers.
        radius: The spectral radius. Echo state networks use 0.8 to 1.
        generator: Source of randomness, for dense tensors only.
        mask: Where entries of a dense tensor are drawn, of its shape or ``(n, n)``; elsewhere they are 0.
            None, the default, draws all entries: zeros of the tensor are ignored, because the memory of
            ``torch.empty`` may hold zeros, too.

    Returns:
        The tensor, or the scaled copy of a scipy matrix.

    Raises:
        NotSquareError: If a dense tensor is neither square nor a stack of square blocks, or a sparse one is
            not square.
        NotAMatrixError: If the tensor is empty or not a matrix.
        UnsupportedDtypeError: If its entries are not numbers, or are integers in a tensor.
        NotFiniteError: If a sparse weight has NaN or infinite entries.
        NotProvenError: If a sparse weight has a strongly connected component of more than 5000 nodes and too
            many eigenvalues close to the largest one.
        ValueError: If the radius is not positive and finite; if all eigenvalues of a sparse or masked weight
            are 0, as for an acyclic graph; if a generator or a mask is passed with a sparse weight; or if the
            mask does not fit.
        TypeError: If the weight is neither a tensor nor a scipy sparse matrix.

    Example:
        >>> W = spectral_param.init.spectral_radius_(torch.empty(50, 50), radius=0.9)
        >>> round(spectral_param.functional.spectral_radius(W).item(), 5)
        0.9

        >>> cycle = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [4.0, 0.0, 0.0]]).to_sparse()
        >>> spectral_param.init.spectral_radius_(cycle, radius=0.5).values()
        tensor([0.5000, 0.2500, 1.0000])
    """
    if not isinstance(tensor, Tensor) and not scipy.sparse.issparse(tensor):
        raise TypeError(
            "spectral_radius_: expected a tensor or a scipy sparse matrix first, then the radius, got "
            f"{type(tensor).__name__}. Scale a dense array by radius / "
            "spectral_param.functional.spectral_radius(torch.from_numpy(array)).item()."
        )
    if not (is_finite(radius) and radius > 0):
        raise ValueError(f"radius: expected a positive finite number, got {radius!r}.")
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        if mask is not None:
            raise ValueError("mask: expected none with a sparse weight, which keeps its pattern, got one.")
        return cast(Weight, _scale_sparse_(tensor, radius, generator))
    blocks = square_blocks(tensor, "spectral_radius_")
    if mask is not None and (mask.dtype != torch.bool or mask.shape not in (tensor.shape, blocks.shape[-2:])):
        raise ValueError(
            f"mask: expected a boolean tensor of shape {tuple(tensor.shape)} or {tuple(blocks.shape[-2:])}, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}. Pass W != 0."
        )
    if mask is not None:
        mask = mask.reshape(blocks.shape) if mask.shape == tensor.shape else mask
        # Rounding turns eigenvalues 0 into about the n-th root of eps, so the graph is checked instead.
        if any(sparse.is_acyclic(each) for each in mask.cpu().reshape(-1, *mask.shape[-2:]).numpy()):
            raise ValueError(
                "mask: expected a graph with a cycle in each matrix, got one whose eigenvalues are all 0. No "
                f"factor gives it the radius {radius:g}: add an entry that closes a cycle."
            )
    with torch.no_grad():
        drawn = torch.empty_like(tensor, device=_source(tensor, generator))
        tensor.copy_(drawn.normal_(generator=generator))
        if mask is not None:
            blocks.masked_fill_(~mask.to(tensor.device), 0)
        # LAPACK has no half precisions.
        exact = blocks.to(torch.promote_types(blocks.dtype, torch.float32))
        blocks *= (radius / spectral_radius(exact))[..., None, None]
    return tensor


def echo_state_(W: Weight, rate: float, leak: float = 1.0) -> tuple[Weight, ContractionCertificate]:
    r"""Scale a reservoir to the largest size for which it provably forgets, for every input.

    A reservoir :math:`h^+ = (1 - a)\,h + a\,φ(Wh + Ux + b)`, whose φ acts on each unit and has slopes in [-1,
    1] like tanh, has the echo state property for every input if some diagonal Θ has :math:`‖ΘWΘ^{-1}‖_2 < 1`.
    Each step then leaves at most the part ``rate`` of a difference of states, in the norm ‖Θ·‖. W is
    multiplied by the largest factor for which this is proven. The rule of thumb, a spectral radius below 1,
    does not imply forgetting. Nor does forgetting imply a radius below 1, for an input that keeps units in
    the flat parts of φ. Feedback of the readout into the reservoir adds to W, and the proof is for W alone:
    scale the sum.

    Source: Buehner and Young, "A tighter bound for the echo state property", IEEE Transactions on Neural
    Networks 17 (2006). For n = 2,000 and ten entries a row the search takes half a minute on one core.

    Args:
        W: The recurrent weight, real: dense ``(..., n, n)`` or ``(..., k·n, n)``, each matrix scaled by
            itself, or one sparse ``(n, n)`` with n up to 5000. A tensor or a numpy array is scaled in place.
            A scipy sparse matrix or array is not changed: a scaled copy in the same format is returned.
        rate: The rate, 1 - leak < rate ≤ 1. Forgetting takes about 1/(1 - rate) steps; with 1 differences do
            not grow.
        leak: a, 0 < a ≤ 1. The default is 1, no leak.

    Returns:
        The tensor or array, or the scaled copy, and the certificate with Θ, the proven rate,
        ρ((1 - a)I + aW) and cond Θ.

    Raises:
        NotSquareError: If W is not square.
        NotAMatrixError: If W is empty or not a matrix.
        UnsupportedDtypeError: If W is complex or has no numbers, or is a tensor or array of integers.
        NotFiniteError: If W has NaN or infinite entries.
        NotProvenError: If a sparse W has more than 5000 rows, or its spectral radius cannot be proven.
        ValueError: If the leak or the rate is out of range; if the graph of W has no cycle: then there is no
            largest factor; or if W is an array that cannot be written to.
        TypeError: If W is neither a tensor nor an array nor a scipy sparse matrix.

    Example:
        >>> W, certificate = spectral_param.init.echo_state_(torch.randn(50, 50), rate=0.99)
        >>> bool(certificate.radius < certificate.rate <= 0.99)
        True
    """
    name = "echo_state_"
    if isinstance(W, np.ndarray):
        scaled_copy, found = echo_state_(_tensor_of(W, name), rate, leak)
        W[...] = scaled_copy.numpy()
        return W, found
    if not isinstance(W, Tensor) and not scipy.sparse.issparse(W):
        raise TypeError(
            f"{name}: expected a tensor, an array or a scipy sparse matrix, got {type(W).__name__}. Pass "
            "torch.tensor(numbers)."
        )
    if not (is_finite(leak) and 0 < leak <= 1):
        raise ValueError(f"leak: expected a number, 0 < leak <= 1, got {leak!r}. Without a leak it is 1.")
    if not (is_finite(rate) and 1 - leak < rate <= 1):
        raise ValueError(
            f"rate: expected a number, 1 - leak = {1 - leak:g} < rate <= 1, got {rate!r}. A leaky unit alone "
            "forgets no faster than 1 - leak: take a larger rate, or a larger leak."
        )
    matrices = matrices_of(W, name)
    for matrix in matrices.each:
        if not is_finite_matrix(matrix):
            raise NotFiniteError(f"{name}: expected finite entries, got NaN or infinite ones.")
        if sparse.is_acyclic(matrix != 0):
            raise ValueError(
                f"{name}: expected a graph with a cycle, got a weight whose eigenvalues are all 0, which "
                "forgets at any size. Add an entry that closes a cycle."
            )
    scalings = [coordinates(matrix) for matrix in matrices.each]
    norms = [norm_bound(scaled(*pair)) for pair in zip(matrices.each, scalings, strict=True)]
    # Rounding the entries enlarges the norm by at most this factor, for every Θ.
    room = 1 + 2 * torch.finfo(_dtype_of(W)).eps * len(scalings[0]) ** 0.5
    factors = torch.tensor(norms, dtype=torch.float64, device="cpu").mul(room).reciprocal()
    factors *= (rate - (1 - leak)) / leak
    if is_sparse(W):
        W = scaled_(W, float(factors))
    else:
        with torch.no_grad():
            blocks = square_blocks(cast(Tensor, W), name)
            exact = to_double(blocks)
            blocks.copy_(exact * to_like(factors.reshape(matrices.batch), exact)[..., None, None])
    return W, certificate(matrices_of(W, name), scalings, leak)


def _tensor_of(array: Array, name: str) -> Tensor:
    """Return a copy, in native byte order, of an array that is to be written to."""
    if not array.flags.writeable:
        raise ValueError(
            f"{name}: expected an array that can be written to, got a read-only one. Pass array.copy()."
        )
    native = array.astype(array.dtype.newbyteorder("="))
    if native.dtype not in (np.float16, np.float32, np.float64):
        raise UnsupportedDtypeError(
            f"{name}: expected real floating-point numbers, got {array.dtype}. Pass array.astype(float)."
        )
    return torch.from_numpy(native)


def contracting_(
    module: nn.Module,
    rate: float,
    input_bound: float | None = None,
    method: Literal["scale", "nearest"] = "scale",
) -> Contraction:
    """Move the weights of a GRU or LSTM into the set for which a rate is proven.

    If the rate is proven for the network already, no bit of its weights changes. Training may lead out of the
    set: call this function after each step of the optimizer, or take
    :class:`spectral_param.nn.ContractingGRU`. See :func:`spectral_param.analysis.contraction` for the proof.

    Args:
        module: ``torch.nn.GRU``, ``LSTM``, or a cell of them.
        rate: The rate, 0 < rate <= 1.
        input_bound: The largest entry of an input; None for any inputs, which is possible for a GRU with the
            rate 1.
        method: ``"scale"``, the default, multiplies all recurrent weights of a layer and direction by one
            factor, at most 1, the largest for which the rate is proven. ``"nearest"`` searches for the member
            of the set that is nearest in the Frobenius norm: the recurrent weights of each unit move by
            themselves, and so do input weights and biases of its update or forget gate. The set is not
            convex, so the result is a local optimum. The search takes some seconds for 64 units.

    Returns:
        The certificate of the network after the change.

    Raises:
        ValueError: If the module is of another kind or is parametrized, or an argument is out of range; with
            ``"scale"`` if an update or forget gate can reach the rate without any recurrent weight: the
            message names its bias.
        NotFiniteError: If a weight is not finite.
        NotProvenError: If no weights are found for which several layers have the rate together.

    Example:
        >>> lstm = torch.nn.LSTM(3, 16)
        >>> spectral_param.init.contracting_(lstm, rate=0.9, input_bound=1.0).rate <= 0.9
        True
    """
    check_choices(method=(method, Literal["scale", "nearest"]))
    return (scale_gates_ if method == "scale" else move_gates_)(module, rate, input_bound)


def _dtype_of(weight: Any) -> torch.dtype:
    """Return the dtype of a weight after it has been scaled."""
    if isinstance(weight, Tensor):
        return weight.dtype
    return torch.float32 if weight.dtype == np.float32 else torch.float64


def _scale_sparse_(weight: Any, radius: float, generator: torch.Generator | None) -> Any:
    """Scale a sparse tensor in place, or return a scaled copy of a scipy matrix."""
    name = "spectral_radius_"
    if generator is not None:
        raise ValueError(
            f"{name}: expected no generator with a sparse weight, whose entries are only scaled, got one. "
            "Draw the entries before you call this function."
        )
    check_sparse(weight, name)
    try:
        rho = sparse.spectral_radius(to_scipy(weight))
    except NotProvenError as error:
        raise NotProvenError(f"{name}: {error}") from None
    if math.isnan(rho):
        raise NotFiniteError(f"{name}: expected finite entries, got NaN or infinite ones.")
    if rho == 0:
        raise ValueError(
            f"{name}: expected a weight with an eigenvalue other than 0, got one whose eigenvalues are all "
            f"0, as those of an acyclic graph. No factor gives it the radius {radius:g}: add an entry that "
            "closes a cycle."
        )
    return scaled_(weight, radius / rho)
