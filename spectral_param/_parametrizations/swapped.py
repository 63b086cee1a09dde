"""The check that ``torch.func.functional_call`` gets originals, not the weight's own name."""

from __future__ import annotations

import sys

from torch.nn.utils import _named_member_accessor as accessor
from torch.nn.utils.parametrize import ParametrizationList

# Frames between torch's function that replaces a tensor and right_inverse: four calls and a few decorators.
_CALLS = 12


def check_not_swapped(constraint: str) -> None:
    """Raise if ``functional_call`` assigns the weight, whose gradient PyTorch's setter drops.

    An assignment ``layer.weight = W`` calls the same setter; only the caller differs.

    Args:
        constraint: The name of the constraint, for the message.

    Raises:
        ValueError: If ``functional_call`` assigns the weight.
    """
    frame = sys._getframe(1)
    for _ in range(_CALLS):
        if frame.f_code is accessor.swap_tensor.__code__:
            break
        if frame.f_back is None:
            return
        frame = frame.f_back
    else:
        return
    name = frame.f_locals["name"]
    originals = _originals(frame.f_locals["module"].parametrizations[name])
    keys = [f"'parametrizations.{name}.{key}'" for key in originals]
    raise ValueError(
        f"{constraint}: expected the originals of the weight from torch.func.functional_call, got a tensor "
        f"for the weight itself, {name!r}, which PyTorch would detach: its gradient would be lost. Pass "
        f"{', '.join(keys)} with the same prefix instead of {name!r}."
    )


def _originals(weight: ParametrizationList) -> list[str]:
    return ["original"] if weight.is_tensor else [f"original{i}" for i in range(weight.ntensors)]
