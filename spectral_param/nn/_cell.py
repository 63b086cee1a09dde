"""The base class of recurrent cells: a constrained recurrent matrix, its initialization and pickling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param import init as init_
from spectral_param._context import HALF
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.block_triangular import Blocks, BlockTriangular, Coupling
from spectral_param._parametrizations.copies import give_class
from spectral_param._parametrizations.tensors import originals_of
from spectral_param._register.arguments import Init
from spectral_param._register.constrain import constrain
from spectral_param._register.reset import let_reset_renew
from spectral_param.errors import UnsupportedDtypeError


def check_step(input: Tensor, hx: Tensor | None, input_size: int, *state_shape: int) -> None:
    """Raise unless input and state fit, and have the same batch or both have none."""
    if input.ndim not in (1, 2) or input.shape[-1] != input_size:
        raise ValueError(
            f"input: expected shape (batch, {input_size}) or ({input_size},), got "
            f"{tuple(input.shape)}. For a sequence take the layer, or call the cell for each time step."
        )
    expected = (*input.shape[:-1], *state_shape)
    if hx is not None and hx.shape != expected:
        same = ", -1" * len(state_shape)
        raise ValueError(
            f"hx: expected shape {expected} for this input, got {tuple(hx.shape)}. Repeat one for the "
            f"whole batch with hx.expand(batch{same})."
        )


class PicklableModule(nn.Module):
    """A parametrized module that ``pickle`` and ``torch.save`` can save as a whole.

    Of other parametrized modules they can save only the ``state_dict``, because PyTorch changes the class of
    the module to a class that pickle cannot find.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not parametrize.is_parametrized(self):
            return super().__reduce_ex__(protocol)
        names = tuple(self.parametrizations)  # type: ignore[arg-type]
        return _without_state, (type(self).__bases__[0], names), vars(self).copy()


class ConstrainedCell(PicklableModule):
    """Abstract recurrent cell whose matrix ``weight_hh`` is made of constrained blocks."""

    input_size: int
    hidden_size: int
    weight_hh: Tensor
    bias: nn.Parameter | None
    #: Constrained tensors that :meth:`reset_parameters` initializes itself.
    _starts_itself = ("weight_hh",)

    def constrain_weight_hh(
        self,
        blocks: Blocks,
        coupling: Coupling,
        init: Init,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Create and constrain ``weight_hh``, for a subclass's constructor.

        For the arguments see :class:`spectral_param.nn.BlockRNNCell`.
        """
        self._start = (blocks, coupling, init)
        _constrain_weight(self, *self._start, device, dtype)

    def reset_parameters(self) -> None:
        """Initialize again as in the constructor, for instance after ``to_empty``."""
        self._reset_rest()
        self._reset_weight_hh()

    def _reset_rest(self) -> None:
        """Initialize all parameters but ``weight_hh``."""
        raise NotImplementedError

    @torch.no_grad()
    def _reset_weight_hh(self) -> None:
        fresh = nn.Module()
        if not parametrize.is_parametrized(self, "weight_hh"):
            _constrain_weight(fresh, *self._start, self.weight_hh.device, self.weight_hh.dtype)
            weight = fresh.weight_hh
            assert isinstance(weight, Tensor)
            self.weight_hh.copy_(weight)
            return
        chain = self._chain()
        blocks = chain[0]
        assert isinstance(blocks, BlockTriangular)
        _constrain_weight(fresh, *self._start, originals_of(chain)[0].device, blocks.dtype)
        # Also copies buffers, such as the D of the scaled Cayley transform. Constraints after the blocks
        # stay.
        chain.load_state_dict(fresh.parametrizations["weight_hh"].state_dict(), strict=False)  # type: ignore[index, union-attr]

    def _chain(self) -> parametrize.ParametrizationList:
        """Return the parametrizations of W, which must have some."""
        chain = self.parametrizations["weight_hh"]  # type: ignore[index]
        assert isinstance(chain, parametrize.ParametrizationList)
        return chain

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ConstrainedCell:
        first = self._chain()[0] if parametrize.is_parametrized(self, "weight_hh") else self.weight_hh
        if isinstance(first, Parametrization | Tensor) and first.dtype.is_complex:
            fn = _by_precision(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def _constrain_weight(
    module: nn.Module,
    blocks: Blocks,
    coupling: Coupling,
    init: Init,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> None:
    # Random rotations, for blocks whose parametrization defines no start: most sets contain rotations.
    rotations = [init_.henaff_(torch.empty(size, size, dtype=dtype, device=device)) for size, _ in blocks]
    module.weight_hh = nn.Parameter(torch.block_diag(*rotations))
    constrain(module, "weight_hh", BlockTriangular(blocks, coupling), init=init)


def _by_precision(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a conversion of a complex network to the precision of ``fn``: real tensors stay real.

    Alone, ``Module.double`` leaves complex tensors in single precision, ``Module.to(torch.float64)`` drops
    their imaginary parts, and ``Module.to(torch.complex128)`` makes biases and angles complex.

    Raises:
        UnsupportedDtypeError: If ``fn`` converts to half precision.
    """
    dtype = fn(torch.empty(0, dtype=torch.float32, device="cpu")).dtype
    if dtype in HALF:
        raise UnsupportedDtypeError(
            f"dtype: expected the precision of torch.float32 or torch.float64 for a complex network, got "
            f"{dtype}. Convert the other layers one by one; torch.autocast leaves this network in the "
            "precision that it has."
        )

    def convert(t: Tensor) -> Tensor:
        if not t.is_complex():
            found = fn(t)
            return found.real.clone() if found.is_complex() else found
        if dtype.is_complex:
            return fn(t)
        return torch.view_as_complex(fn(torch.view_as_real(t.resolve_conj())))

    return convert


def _without_state(kind: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """Return a module without attributes, whose class computes the tensors of these names."""
    module = kind.__new__(kind)
    give_class(module, kind, names)
    let_reset_renew(module)
    return module
