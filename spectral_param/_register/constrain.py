"""``constrain`` puts constraints on tensors of any module, and ``remove`` takes constraints off again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import (
    is_parametrized,
    register_parametrization,
    remove_parametrizations,
    type_before_parametrizations,
)
from torch.optim import Optimizer

from spectral_param._context import has_no_values
from spectral_param._held.optimizers import checked_optimizers
from spectral_param._held.record import release
from spectral_param._held.steps import Step
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.foreign import originals_for
from spectral_param._parametrizations.rotation import Rotation
from spectral_param._progress import steps
from spectral_param._register.arguments import (
    Init,
    check_chain,
    check_gates,
    check_not_sharded,
    check_step,
    check_target,
)
from spectral_param._register.held import check_not_held, hold
from spectral_param._register.holders import check_kind, prepared
from spectral_param._register.reset import let_reset_renew
from spectral_param._register.snapshot import Snapshot
from spectral_param._register.targets import check_one_name, naming, targets_of

M = TypeVar("M", bound=nn.Module)
_TORCHS_OWN = ("_Orthogonal", "_SpectralNorm")
# Marks constraints of other libraries that constrain has registered, so that remove finds them.
_REGISTERED = "_registered_by_constrain"


def constrain(
    module: M,
    tensor_name: str,
    constraint: nn.Module | Sequence[nn.Module],
    *,
    init: Init = None,
    gates: int | None = None,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    step: Step = None,
) -> M:
    """Constrain a tensor of a module by :func:`torch.nn.utils.parametrize.register_parametrization`.

    Beyond this function of torch, ``constrain`` takes a pattern for several tensors and a list of
    constraints. Each gate of an LSTM or GRU is constrained separately, and kernels of convolutions are
    constrained as described below. ``constrain`` chooses the initial weight, and refuses tensors on which the
    constraint would not hold. Afterwards the module's ``reset_parameters`` also starts the weight again, by
    :meth:`Parametrization.restart`.

    Example:
        >>> lstm = torch.nn.LSTM(8, 64, num_layers=2)
        >>> lstm = spectral_param.constrain(lstm, "weight_hh_l*", spectral_param.SpectralRadiusNorm(0.95))
        >>> gates = lstm.weight_hh_l1.unflatten(0, (4, 64))
        >>> torch.linalg.eigvals(gates).abs().amax(dim=-1)  # each gate's block by itself
        tensor([0.9500, 0.9500, 0.9500, 0.9500], grad_fn=<AmaxBackward0>)

    Args:
        module: The module that has the tensor. The module is changed in place.
        tensor_name: Name of a parameter or buffer, such as ``"weight_hh_l0"`` or ``"encoder.weight"``, or a
            pattern of names, such as ``"weight_hh_l*"``. Each match gets a copy of the constraint.
        constraint: A constraint of this library, a manifold of geotorch, or any PyTorch parametrization; or a
            list of these. The constraints of a list act in order. The weight is the result of the last
            constraint, and only the last constraint is guaranteed to hold. A parametrization without a
            ``right_inverse`` takes the given weight as its original, as in PyTorch. Constraints are copied;
            the given constraints are not changed. If the tensor already has a parametrization, the constraint
            acts on the weight that this parametrization returns. To replace a parametrization, remove the old
            one first.
        init: The initial weight. ``None``, the default, takes the tensor's present values. ``"paper"`` takes
            the initialization of the constraint's paper, or the ``sample()`` of a constraint of another
            library. A tensor is copied. A function fills a tensor in place, as the functions of
            ``torch.nn.init`` do. A weight outside the set is projected onto the set; if a manifold of
            geotorch refuses the weight and cannot project it, the manifold's ``sample()`` is taken.
        gates: Number k of blocks in a weight ``(k·m, n)``, each constrained separately. ``None``, the
            default, means 4 for the weights of an LSTM, 3 for the weights of a GRU and for ``in_proj_weight``
            of MultiheadAttention, the number of groups for a convolution, and 1 for other tensors.
        optimizer: With ``None``, the default, a map computes the weight from unconstrained tensors in each
            read. With one optimizer or several, the weight stays an ordinary parameter, which is projected at
            once and after each step of the optimizer that trains it; see below.
        step: How optimizer steps treat the weight; only with ``optimizer``. ``None``, the default, chooses
            ``"tangent"`` if the tangent space of the set is implemented, else ``"project"``. ``None`` also
            chooses ``"project"`` for LBFGS, which evaluates the loss outside of the set. ``None`` also
            chooses ``"project"`` for SGD if the set has an interior (``mode="at_most"``, for instance),
            because SGD then stops at the minimum without the tangent space. A copy of a model keeps this
            argument. ``"tangent"``: the optimizer gets the part of the gradient along the set.
            ``"relative"``: in addition to ``"tangent"``, the step is made along the set and turns the weight
            by about the learning rate, in radians. ``"msign"``: in addition to ``"tangent"``, the step is a
            matrix of equal singular values along the set, as in Muon. ``"project"``: the optimizer gets the
            whole gradient, and the weight is projected after the step.

    Returns:
        The module.

    Raises:
        ValueError: If ``module`` is not a module, or no tensor has this name. If ``init`` or ``gates`` does
            not fit the tensor, or ``step`` does not fit the set or the optimizer. If the tensor has no shape
            yet, is a kernel that is not a matrix (see below), or has a shape that the constraint does not
            take. If the tensor's module is pruned or scripted, computes the weight in a hook, or is an
            Embedding with sparse gradients or ``max_norm``. Without ``optimizer``: if FSDP2 has sharded the
            tensor, or if the tensor is tied, that is, registered under a second name in the module (let the
            forward pass read one name twice, or pass ``optimizer``). If the constraint raises a ValueError.

    The kernel of a convolution counts as a matrix if the kernel size is 1, or if the stride equals the kernel
    size, without padding and dilation, as in a patch embedding. The layer then multiplies patches that do not
    overlap by a matrix of shape (output channels, inputs of a patch) for each group, and a constraint on this
    matrix is a constraint on the layer. :class:`spectral_param.SpectralNorm` takes every kernel, with zero or
    circular padding, and bounds the norm of the layer. Constraints on entries and rows, such as
    :class:`spectral_param.FrobeniusNorm`, take every kernel.

    **After the step.** With ``optimizer=`` the weight keeps its name, type, identity and memory, a read costs
    nothing, and the constraint does not change the ``state_dict``.

        >>> layer = torch.nn.Linear(64, 64)
        >>> optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
        >>> layer = spectral_param.constrain(
        ...     layer, "weight", spectral_param.ScaledCayley(), optimizer=optimizer
        ... )
        >>> layer(torch.randn(8, 64)).square().mean().backward()
        >>> optimizer.step()
        >>> W = layer.weight
        >>> type(W).__name__, torch.allclose(W.mT @ W, torch.eye(64), atol=1e-5)
        ('Parameter', True)

    **Steps along the set.** At the minimum over a set the gradient is normal to the set, not zero. An
    optimizer that divides the gradient entry by entry, as Adam does, changes the gradient's direction, so a
    weight that is only projected (``"project"``) does not stop at the minimum. The part of the gradient along
    the set vanishes at the minimum. So before each step the weight's ``grad`` is replaced by this part. The
    whole gradient is not restored after the step, so call ``zero_grad`` before the next backward pass. Weight
    decay that is added to the gradient before the division is refused, because such weight decay would move
    the stopping point, too. A relative step on a sphere turns the weight by exactly the arctan of the
    learning rate, independently of the scale of the loss. A weight with orthonormal columns turns by slightly
    less.

    The constraint holds after each step, until something else writes to the weight. A checkpoint does not
    save the constraint: call ``constrain`` again when a run is resumed. A weight that has several names in
    the module is one parameter. Constraints that train a proof along with the weight, such as
    :class:`spectral_param.LyapunovForm`, cannot be held after the step and are refused. If a step makes a
    weight non-finite, the weight is not projected, and one warning is given.

    Warns:
        UserWarning: If torch's ``orthogonal`` or ``spectral_norm`` or a manifold of geotorch acts before the
            new constraint.
    """
    # A string is a Sequence, too. Treat a string as one (wrong) constraint, so that the message shows the
    # whole string.
    is_list = isinstance(constraint, Sequence) and not isinstance(constraint, str)
    chain: list[Any] = [*constraint] if is_list else [constraint]  # type: ignore[misc]
    targets = targets_of(module, tensor_name)
    check_chain(chain, init)
    check_gates(chain, gates)
    check_step(step, optimizer is not None)
    if optimizer is not None:
        hold(module, tensor_name, targets, chain, gates, init, checked_optimizers(optimizer), step)
        return module
    for full, owner, name in targets:
        with naming(full, tensor_name):
            check_kind(owner, name, chain, gates)
            check_not_held(owner, name)
            check_target(owner, name, init)
            check_not_sharded(owner, name)
            check_one_name(module, owner, name)
    before = [Snapshot(owner, name) for _, owner, name in targets]
    stacked = [f"{full} ({kind})" for full, owner, name in targets for kind in _of_others(owner, name)]
    try:
        with steps("constrain", len(targets), "weight") as done:
            for full, owner, name in targets:
                with naming(full, tensor_name):
                    _register(owner, name, [prepared(link, owner, name, gates) for link in chain], init)
                done(1)
    except Exception:
        for snapshot in reversed(before):
            snapshot.restore()
        raise
    if stacked:
        warnings.warn(
            "constrain: expected a weight without a constraint of torch or geotorch, got "
            f"{', '.join(stacked)}. The constraint acts after it and may change the weight; only the "
            "constraint is sure to hold. To replace it, call "
            "torch.nn.utils.parametrize.remove_parametrizations before constrain.",
            stacklevel=2,
        )
    return module


def remove(module: M, tensor_name: str = "*") -> M:
    """Remove constraints and leave ordinary parameters (or buffers) with the same values, to deploy a model.

    This function is :func:`torch.nn.utils.parametrize.remove_parametrizations` for a whole model. The model
    then no longer needs this library: it can be scripted, exported, or loaded where the library is not
    installed. Create the optimizer again, because the parameters are new. A weight that was constrained with
    ``optimizer=`` is an exception: its parameter stays the same, and steps no longer project this parameter.
    Constraints of other libraries are removed, too, if :func:`constrain` registered them, and adapters of
    :func:`spectral_param.nn.adapt` are merged.

    Example:
        >>> layer = spectral_param.constrain(torch.nn.Linear(64, 16), "weight", spectral_param.ScaledCayley())
        >>> before = layer.weight.detach().clone()
        >>> layer = spectral_param.remove(layer)
        >>> type(layer).__name__, type(layer.weight).__name__, torch.equal(layer.weight, before)
        ('Linear', 'Parameter', True)

    Args:
        module: The module that has the tensors. The module is changed in place.
        tensor_name: Name of a tensor, such as ``"encoder.weight"``, or a pattern of names. The default is
            all tensors.

    Returns:
        The module.

    Raises:
        ValueError: If ``module`` is not a module, or no tensor has this name.

    Warns:
        UserWarning: If tensors that match have parametrizations that this library has not registered. These
            parametrizations stay.
    """
    left = []
    for _, owner, name in targets_of(module, tensor_name):
        if release(module, owner, name) or not is_parametrized(owner, name):
            continue
        links: Any = owner.parametrizations[name]  # type: ignore[index]
        if not any(map(_is_registered_here, links)):
            left.append(
                f"{name} of {type(owner).__name__} ({', '.join(type(link).__name__ for link in links)})"
            )
            continue
        make_plain(owner, name)
    if left:
        warnings.warn(
            f"remove: left {'; '.join(left)}, which this library has not registered. To remove these, too, "
            "call torch.nn.utils.parametrize.remove_parametrizations.",
            stacklevel=2,
        )
    return module


def make_plain(owner: nn.Module, name: str) -> None:
    """Replace a parametrized tensor by an ordinary parameter or buffer of the same value."""
    for link in owner.parametrizations[name]:  # type: ignore[index]
        if isinstance(link, Rotation):
            link.is_merging = True
    remove_parametrizations(owner, name)
    plain = getattr(owner, name)
    # The values are copied at once, because a weight that was read may be a lazy copy, whose memory is copied
    # only at the first write.
    plain.data = plain.data.clone(memory_format=torch.contiguous_format)


def _is_registered_here(link: nn.Module) -> bool:
    return isinstance(link, (Parametrization, Rotation)) or _REGISTERED in vars(link)


def _register(owner: nn.Module, name: str, links: list[nn.Module], init: Init) -> None:
    first, *later = links
    present = owner.parametrizations[name] if is_parametrized(owner, name) else ()  # type: ignore[index]
    for i, link in enumerate(links):
        if isinstance(link, Parametrization):
            if present or i:
                link._check_acts_after()
            link.check_after([*present, *links[:i]])
    if present:
        later = links
    else:
        weight = getattr(owner, name)
        with torch.no_grad():
            if isinstance(init, Tensor):
                weight.copy_(init)
            elif callable(init):
                init(weight)
            if isinstance(first, Parametrization):
                first._from_paper = isinstance(init, str)
            else:
                _start_foreign(first, weight, from_sample=isinstance(init, str))
        register_parametrization(owner, name, first)
        if isinstance(first, Parametrization):
            # The attribute is set in vars(), because setattr would mark the weight as changed, although the
            # weight does not depend on this attribute.
            vars(first)["_use"] = f"{name} of {type_before_parametrizations(owner).__name__}"
    for link in later:
        register_parametrization(owner, name, link)
    for link in links:
        if not isinstance(link, Parametrization):
            vars(link)[_REGISTERED] = True
    let_reset_renew(owner)


def _of_others(owner: nn.Module, name: str) -> list[str]:
    """Return the names of the constraints of torch and geotorch that act on a tensor."""
    links: Any = owner.parametrizations[name] if is_parametrized(owner, name) else ()  # type: ignore[index]
    kinds = [(type(link).__module__.split(".")[0], type(link).__name__) for link in links]
    return [
        kind
        for library, kind in kinds
        if library == "geotorch" or (library == "torch" and kind in _TORCHS_OWN)
    ]


def _start_foreign(link: nn.Module, weight: Tensor, from_sample: bool) -> None:
    """Fill the weight with a member of another library's set; a weight that is a member already stays."""
    if has_no_values(weight):
        return
    if from_sample:
        sample: Any = getattr(link, "sample", None)
        if sample is None or not hasattr(link, "right_inverse"):
            raise ValueError(
                f"init: expected None, a tensor or a function for {type(link).__name__}, which has no "
                "sample() with a right_inverse(), got 'paper'. Pass a tensor: the initial weight, or the "
                "original if there is no right_inverse()."
            )
        weight.copy_(sample())
        return
    if not hasattr(link, "right_inverse"):
        return  # PyTorch takes the weight as the original, and applies the parametrization to it.
    trial = copy.deepcopy(link)
    originals = originals_for(trial, weight.detach(), torch.finfo(weight.dtype).eps, is_first=True)
    weight.copy_(trial(*originals))
