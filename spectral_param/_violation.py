"""How far the weights of a model are outside their sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectral_param._model import constraints
from spectral_param._parametrizations import Parametrization
from spectral_param._parametrizations.placed import distance
from spectral_param._parametrizations.tensors import is_sharded, originals_of
from spectral_param._register.holders import prepared
from spectral_param._register.targets import targets_of


def violation(model: nn.Module, expected: Mapping[str, Parametrization] | None = None) -> dict[str, float]:
    r"""Return how far each constrained weight of a model is outside its set, by name; 0 for a member.

    The number is the largest :meth:`spectral_param.Parametrization.distance` of the matrices of a weight, NaN
    for a weight that is not finite. Averages of weights that are held after the step leave their sets. This
    function measures the distance, and :meth:`spectral_param.Parametrization.project` removes it. The call
    does not affect training. Where FSDP2 shards weights that are held after the step, all processes have to
    call it.

    Args:
        model: Any model.
        expected: ``None``, the default: the constraints that the model has. Alternatively, a dict from names
            of tensors (or patterns of names) to constraints, for a model that may have lost them: a
            checkpoint of weights that are held after the step loads into the plain class without a warning.

    Raises:
        ValueError: If ``model`` is not a module, no tensor has a name in ``expected``, or FSDP2 has sharded
            the parameters from which a weight is computed.

    Example:
        >>> layer = torch.nn.Linear(8, 8)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> cayley = spectral_param.ScaledCayley()
        >>> layer = spectral_param.constrain(layer, "weight", cayley, optimizer=optimizer)
        >>> spectral_param.violation(layer)
        {'weight': 0.0}
        >>> _ = layer.weight.data.mul_(2)
        >>> round(spectral_param.violation(layer)["weight"], 4)  # 3√8
        8.4853
        >>> plain = torch.nn.Linear(8, 8)
        >>> plain.load_state_dict(layer.state_dict())
        <All keys matched successfully>
        >>> spectral_param.constraints(plain)  # trains on without the constraint
        {}
        >>> round(spectral_param.violation(plain, {"weight": cayley})["weight"], 4)
        8.4853
    """
    if expected is not None:
        found = {}
        for pattern, constraint in expected.items():
            for full, owner, name in targets_of(model, pattern):
                known: Any = prepared(constraint, owner, name, None)
                found[full] = distance(known, getattr(owner, name))
        return found
    return {
        name: distance(constraint, _weight_of(model, name)) for name, constraint in constraints(model).items()
    }


def _weight_of(model: nn.Module, full: str) -> Tensor:
    path, _, name = full.rpartition(".")
    owner = model.get_submodule(path)
    links: Any = owner.parametrizations[name] if is_parametrized(owner, name) else None  # type: ignore[index]
    if links is not None and any(map(is_sharded, originals_of(links))):
        raise ValueError(
            f"violation: expected parameters that are not sharded, got those of {full!r}, from which the "
            "weight is computed. Call it between unshard() and reshard() of the module that fully_shard got."
        )
    weight: Tensor = getattr(owner, name)
    return weight
