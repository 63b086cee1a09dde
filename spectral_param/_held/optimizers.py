"""Checks of optimizers that are to keep weights in sets, and the search for the optimizer of a weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from spectral_param.functional._checks import described


def checked_optimizers(optimizer: Any) -> list[Optimizer]:
    """Return the given optimizer or optimizers as a list without duplicates.

    Raises:
        ValueError: If an argument is not a PyTorch optimizer, or if an optimizer differentiates its step.
    """
    given = (
        [optimizer]
        if isinstance(optimizer, Optimizer) or not isinstance(optimizer, Iterable)
        else [*optimizer]
    )
    if not given or not all(isinstance(each, Optimizer) for each in given):
        wrong = next((each for each in given if not isinstance(each, Optimizer)), "none")
        raise ValueError(
            f"optimizer: expected an optimizer of torch.optim or several, got {described(wrong)}. "
            "Construct it from the model's parameters, then pass it here; of a wrapper pass the optimizer "
            "inside."
        )
    for each in given:
        try:
            each.register_step_post_hook(_nothing).remove()
        except AttributeError:  # For instance, accelerate's optimizer does not call Optimizer.__init__.
            raise ValueError(
                f"optimizer: expected one that takes hooks, got {type(each).__name__}, whose constructor "
                "does not call that of torch.optim.Optimizer. Of a wrapper pass the optimizer inside."
            ) from None
        if any(group.get("differentiable") for group in each.param_groups):
            raise ValueError(
                "optimizer: expected one whose steps are not differentiated, got differentiable=True: the "
                "projection would be missing in the graph. Leave out the optimizer, to hold the weight by "
                "its map."
            )
    return list(dict.fromkeys(given))


def _nothing(*_: Any) -> None:
    """Do nothing after a step."""


def optimizer_of(weight: Tensor, optimizers: list[Optimizer]) -> Optimizer:
    """Return the optimizer that has the weight among its parameters.

    Raises:
        ValueError: If no optimizer has the weight, or if several optimizers have the weight.
    """
    having = [each for each in optimizers if any(p is weight for g in each.param_groups for p in g["params"])]
    if len(having) == 1:
        return having[0]
    kinds = " and ".join(type(each).__name__ for each in having or optimizers)
    if having:
        raise ValueError(
            f"optimizer: expected one optimizer that has the weight, got {kinds}, which both have it. Leave "
            "the weight out of all but one."
        )
    raise ValueError(
        f"optimizer: expected one that has the weight, got {kinds} without it. Construct the optimizer after "
        "the parameters have been moved, wrapped or replaced, from model.parameters(), or call "
        "optimizer.add_param_group."
    )
