"""A proof for a given recurrent network: the rate at which it forgets where it started from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param.analysis._measured_contraction import MeasuredContraction, measured
from spectral_param.errors import NotFiniteError
from spectral_param.functional._checks import check_module
from spectral_param.functional._gate_weights import Weights, as_array
from spectral_param.functional._gru_growth import scaling_of
from spectral_param.functional._network_contraction import Contraction, Proof, prove, shaped, starts_of
from spectral_param.functional._recurrent_modules import (
    KINDS,
    check_input_bound,
    check_settings,
    layer,
    refuse,
    torch_layers,
)
from spectral_param.nn._block_rnn import BlockRNNCell
from spectral_param.nn._contracting_gru import ContractingGRUCell
from spectral_param.nn._delta_product import DeltaProduct, DeltaProductCell
from spectral_param.nn._goru import GORUCell
from spectral_param.nn._sequence_layer import SequenceLayer
from spectral_param.nn._state_space import StateSpace, StateSpaceCell

_NAME = "contraction"
_EXPECTED = (
    "an RNN, GRU or LSTM of torch.nn, a cell of them, a ContractingGRU, ContractingRNN, BlockRNN, "
    "DeltaProduct or cell of spectral_param.nn, or a torch.nn.ModuleList of such modules in a row"
)


class _Part(NamedTuple):
    """The weights of a module with its own states, by layer and direction."""

    layers: list[list[Weights]]
    is_cell: bool


@overload
def contraction(module: nn.Module, input_bound: float | None = None) -> Contraction: ...


@overload
def contraction(
    module: nn.Module, input_bound: float | None = None, *, inputs: Tensor, runs: int = 8
) -> MeasuredContraction: ...


def contraction(
    module: nn.Module, input_bound: float | None = None, *, inputs: Tensor | None = None, runs: int = 8
) -> Contraction | MeasuredContraction:
    r"""Return the rate at which a recurrent network provably forgets where it started from.

    Two runs read the same inputs, from different starts. If the result has a rate r and the ``scaling`` d,
    the difference δ of their states obeys :math:`\max_i |δ^+_i|/d_i ≤ r \max_i |δ_i|/d_i` in each step, for
    every input whose entries are at most ``input_bound``. So after k steps each unit differs by at most
    :math:`d_i\, r^k \max_j |δ_j|/d_j`. With r = 1 differences never grow. The rate is proven in double
    precision for the weights as they are stored; the rounding errors of the network itself are not included.

    The rate holds for starts within ``starts``: the cube \|h\| <= 1 of a GRU or LSTM, which states do not
    leave, and \|c\| <= κ = 1/(1 - f̄) for the cells of an LSTM, whose forget gates are at most f̄. Layers in
    a row are compared together, in one norm; where several layers have the largest rate, the result exceeds
    this rate by about 1e-6. With two directions, each direction of each layer has the rate for equal inputs.
    So for every r above the rate, states at time t of T differ by at most :math:`C (r^t + r^{T - t})` with a
    number C.

    Without ``input_bound``, inputs can hold an update gate that reads them at 1 for any number of steps, so a
    GRU has the rate 1 at best; an LSTM has no rate. A :class:`spectral_param.nn.ContractingGRU` needs no
    bound. Networks without gates contract at the least norm in diagonal coordinates, or at ρ(\|W\|),
    whichever is less. A rate that is not proven may exist: the proof takes absolute values.

    One layer of a :class:`spectral_param.nn.DeltaProduct` has its own rate, or 1, in the 2-norm: a product of
    reflections has a norm of at most 1. Nothing is proven for several layers, because the outputs of the
    first layer choose the reflections of the second layer, and differ between the runs.

    The proof does not hold for a network whose output is fed back into its input.

    Source of the idea for GRUs: Bonassi, Farina and Scattolini, "On the stability properties of gated
    recurrent units neural networks" (2021). The derivation stands in
    ``spectral_param/functional/_comparison.py``.

    Args:
        module: ``torch.nn.RNN``, ``GRU`` or ``LSTM`` or one of their cells; a network of this library whose
            units have ReLU, tanh, no activation, or modReLU with biases b <= 0; or a ``torch.nn.ModuleList``
            of such modules of one direction, each reading the states of the one before. A module with dropout
            between layers has to be in evaluation mode.
        input_bound: The largest entry of an input; None for any inputs.
        inputs: Inputs on which a rate is measured, too, ``(time, batch, features)``, or ``(batch, time,
            features)`` with ``batch_first``. Runs from several starts read the same inputs, in double
            precision; the starts are uniform in the box of the states that a run from zero visits, at least
            [-1, 1]. The rate of a pair of runs is the mean factor by which their largest difference shrinks
            in a step, until this difference has shrunk by 1e9, or to the end. None, the default: nothing is
            measured.
        runs: Number of starts for each sequence of ``inputs``, at least 2.

    Returns:
        Named tuple ``(rate, scaling, starts, norm, obstacle)``. Where no rate of at most 1 is proven,
        ``rate`` is None and ``obstacle`` names the layer, the gate and the bias. With ``inputs`` the tuple
        also has ``(worst, median, steps, pairs)``: a measurement, which proves nothing for other inputs and
        starts.

    Raises:
        ValueError: If the module is of another kind, has dropout in training or a ``proj_size``, or if
            ``input_bound`` is no finite number > 0; with ``inputs`` also if they do not fit, if an entry is
            beyond ``input_bound``, or if the module is a cell, a list, or has two directions.
        NotFiniteError: If a weight is not finite.
        UnsupportedDtypeError: If a weight is complex.

    Example:
        >>> gru = torch.nn.GRU(2, 8)
        >>> spectral_param.analysis.contraction(gru, input_bound=1.0).rate is None
        True
        >>> certificate = spectral_param.init.contracting_(gru, rate=0.98, input_bound=1.0)
        >>> certificate.rate <= 0.98, certificate.scaling.shape
        (True, torch.Size([1, 8]))

        Nothing may be proven of a network that forgets:

        >>> found = spectral_param.analysis.contraction(torch.nn.GRU(2, 32), 1.0, inputs=torch.rand(50, 4, 2))
        >>> found.rate is None, found.worst < 0.9
        (True, True)
    """
    proven = _proven(module, input_bound)
    if inputs is None:
        return proven
    return MeasuredContraction(*proven, *measured(module, inputs, runs, input_bound))


def _proven(module: nn.Module, input_bound: float | None) -> Contraction:
    """Return the proof, or the obstacle to a proof."""
    check_module(module, "module")
    bound = check_input_bound(input_bound)
    if isinstance(module, (DeltaProduct, DeltaProductCell)):
        return _of_reflections(module)
    parts = _in_a_row(module, bound) if isinstance(module, nn.ModuleList) else [_part(module, bound)]
    for part in parts:
        if isinstance(part, str):
            return Contraction(None, None, _starts(parts, module), "max", part)
    known = [part for part in parts if isinstance(part, _Part)]
    proof = prove([each for part in known for each in part.layers])
    scaling = None if proof.rate is None else _scaling(proof, known, module)
    return Contraction(proof.rate, scaling, _starts(parts, module), proof.norm, proof.obstacle)  # type: ignore[arg-type]


def _of_reflections(module: DeltaProduct | DeltaProductCell) -> Contraction:
    """Return what the norms of products of reflections prove."""
    is_cell = isinstance(module, DeltaProductCell)
    cells: list[Any] = [module] if isinstance(module, DeltaProductCell) else list(module.cells)
    for cell in cells:
        if not all(bool(p.isfinite().all()) for p in cell.parameters()):
            raise NotFiniteError(f"{_NAME}: expected finite weights, got NaN or infinite ones.")
    shape = module.state_shape if is_cell else (len(cells), *module.state_shape)
    ones = torch.ones(shape, dtype=torch.float64, device="cpu")
    starts = torch.full_like(ones, math.inf)
    if len(cells) > 1:
        return Contraction(None, None, starts, "2", _DIFFERENT_INPUTS)
    rate = cells[0].rate
    return Contraction(1.0 if rate is None else rate, ones, starts, "2", None)


_DIFFERENT_INPUTS = (
    "layer 1: its reflections are chosen by what layer 0 returns, which differs between the runs. Each layer "
    "by itself has a rate, for given inputs: contraction(module.cells[k])."
)


def _part(module: nn.Module, bound: float) -> _Part | str:
    """Return the layers of a module, or the obstacle to any proof."""
    kind = type_before_parametrizations(module)
    if kind in KINDS:
        return _Part(torch_layers(module, bound, _NAME), isinstance(module, nn.RNNCellBase))
    if kind in (ContractingGRUCell, BlockRNNCell, GORUCell):
        found = _cell(module, "the cell", bound)
        return found if isinstance(found, str) else _Part([[found]], is_cell=True)
    if isinstance(module, (DeltaProduct, DeltaProductCell)):
        return (
            "a DeltaProduct in a row with others: its reflections are chosen by what the network before it "
            "returns, and differ between the runs. Pass it by itself."
        )
    if isinstance(module, (StateSpace, StateSpaceCell)):
        refuse(
            module,
            _NAME,
            _EXPECTED,
            "Its dynamics are linear: analysis.lyapunov_certificate(A) proves a rate of A in system().",
        )
    if not isinstance(module, SequenceLayer):
        remedy = "Pass the recurrent network inside the model, for example model.rnn."
        refuse(module, _NAME, _EXPECTED, remedy)
    assert isinstance(module, SequenceLayer)
    check_settings(module, _NAME)
    layers: list[list[Weights]] = []
    for k in range(module.num_layers):
        directions: list[Weights] = []
        for j in range(module.num_directions):
            label = f"layer {k}" + ", backwards" * (j == 1)
            reads = bound if k == 0 else layers[-1][0].output_bound
            found = _cell(module.cells[k * module.num_directions + j], label, reads)
            if isinstance(found, str):
                return found
            directions.append(found)
        layers.append(directions)
    return _Part(layers, is_cell=False)


@torch.no_grad()
def _cell(cell: Any, label: str, bound: float) -> Weights | str:
    """Return the weights of a cell of this library, or the obstacle to a proof."""
    if isinstance(cell, ContractingGRUCell):
        weight, limit = cell.bounded()
        parts = (cell.weight_ih, weight, cell.bias_ih, cell.bias_hh)
        clamp = math.inf if limit is None else as_array(limit)
        own = as_array(scaling_of(cell.log_scaling))
        return layer("GRU", label, parts, bound, limit=clamp, scaling=own)
    if isinstance(cell, GORUCell):
        return (
            f"{label}: the orthogonal weight of the candidate and its modReLU: the states have no bound. "
            "Take spectral_param.nn.ContractingGRU."
        )
    if not isinstance(cell, BlockRNNCell):
        refuse(cell, _NAME, _EXPECTED, "A cell of your own needs a proof of its own.")
    activation = cell.nonlinearity
    if activation not in ("relu", "tanh", "identity", "modrelu"):
        return (
            f"{label}: the activation {activation!r}, whose slopes are not known. Take 'relu' or 'tanh'; for "
            "others with slopes in [-1, 1], analysis.lyapunov_certificate(weight_hh, metric='diagonal') is "
            "the proof."
        )
    if activation == "modrelu" and cell.bias is not None and bool((cell.bias > 0).any()):
        unit = int(cell.bias.argmax())
        return (
            f"{label}: modReLU jumps where its bias is positive: {float(cell.bias[unit]):.3g}, unit {unit}."
        )
    W = cell.weight_hh
    U = torch.eye(len(W), dtype=W.dtype, device=W.device) if cell.weight_ih is None else cell.weight_ih
    return layer("RNN", label, (U, W, None, None), bound, activation)


def _in_a_row(modules: nn.ModuleList, bound: float) -> list[_Part | str]:
    """Return the parts of a list of modules, each of which reads the states of the one before."""
    if not len(modules):
        refuse(modules, _NAME, _EXPECTED, "It is empty.")
    found: list[_Part | str] = []
    for module in modules:
        part = _part(module, bound)
        if isinstance(part, _Part):
            if any(len(directions) > 1 for directions in part.layers):
                refuse(module, _NAME, "modules of one direction in a list", "Pass it by itself.")
            bound = part.layers[-1][0].output_bound
        found.append(part)
    known = [part.layers for part in found if isinstance(part, _Part)]
    for before, after in itertools.pairwise(known):
        units, reads = before[-1][0].units, after[0][0].inputs.shape[1]
        if units != reads:
            raise ValueError(
                f"{_NAME}: module: expected modules of which each reads the states of the one before, got "
                f"one of {units} units before one that reads {reads} features. Pass them one by one."
            )
    return found


def _scaling(proof: Proof, parts: Sequence[_Part], module: nn.Module) -> object:
    rest = list(proof.scalings)
    found = []
    for part in parts:
        own, rest = rest[: len(part.layers)], rest[len(part.layers) :]
        found.append(shaped(own, part.layers, part.is_cell))
    return found if isinstance(module, nn.ModuleList) else found[0]


def _starts(parts: Sequence[_Part | str], module: nn.Module) -> Any:
    found = [
        None
        if isinstance(part, str)
        else shaped([[starts_of(each) for each in row] for row in part.layers], part.layers, part.is_cell)
        for part in parts
    ]
    return found if isinstance(module, nn.ModuleList) else found[0]
