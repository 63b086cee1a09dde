"""Names of other packages that people try here, and what to use: the table of module ``__getattr__``.

Each advice names what to use between backticks; a test evaluates the code between the backticks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Guess(NamedTuple):
    """What some names of other packages are called here.

    Attributes:
        modules: The modules of this package in which the names are tried; "" is the package itself.
        names: The names, with spaces between.
        of: Where the names come from, for the message; empty if the field uses them, not one package.
        advice: What to use instead.
    """

    modules: tuple[str, ...]
    names: str
    of: str
    advice: str


_TOP, _BOTH = ("",), ("", "nn")
_FIT = ("", "dynamics")

GUESSES = (
    # Constraints.
    Guess(
        _BOTH,
        "Orthogonal OrthogonalConstraint Orthonormal SO Stiefel orthogonal Unitary",
        "torch, geotorch or geoopt",
        "Take `spectral_param.ScaledCayley()`: orthonormal columns of any shape, unitary for complex "
        "weights; `spectral_param.SkewExponential()` is the map of geotorch's SO.",
    ),
    Guess(
        _BOTH,
        "AlmostOrthogonal almost_orthogonal",
        "geotorch",
        "Take `spectral_param.SingularValues(margin=0.5)`.",
    ),
    Guess(
        _BOTH,
        "Cayley CayleyMap MatrixExponential Expm",
        "torch or geotorch",
        "Take `spectral_param.ScaledCayley()` or `spectral_param.SkewExponential()`; as functions of "
        "tensors `spectral_param.functional.cayley` and `spectral_param.functional.exponential`.",
    ),
    Guess(
        _BOTH,
        "LowRank FixedRank PSD PSSD PSSDLowRank Symmetric Grassmannian GLp low_rank fixed_rank "
        "positive_definite symmetric invertible Skew skew",
        "geotorch",
        "It has no counterpart here: `spectral_param.constrain` takes the manifold of geotorch itself, as "
        "in constrain(layer, 'weight', geotorch.LowRank((32, 16), rank=4)).",
    ),
    Guess(
        _BOTH,
        "Sphere sphere Oblique oblique weight_norm WeightNorm NormalizedLinear",
        "torch, geotorch or geoopt",
        "Take `spectral_param.FrobeniusNorm(1.0)`, a sphere, or with dim= rows or columns of given length, "
        "`spectral_param.FrobeniusNorm(1.0, dim=0)`.",
    ),
    Guess(
        _BOTH,
        "Hurwitz hurwitz AlphaStable alpha_stable",
        "geotorch",
        "Take `spectral_param.LyapunovForm(abscissa=-0.1)`, or for the eigenvalues alone "
        "`spectral_param.SpectralAbscissa(-0.1, mode='at_most')`.",
    ),
    Guess(
        _BOTH,
        "spectral_norm SpectralNormalization SN SpectralLinear SpectralConv2d LipschitzLinear",
        "torch, Keras or deel-torchlip",
        "Constrain a layer of torch: `spectral_param.constrain(torch.nn.Linear(4, 4), 'weight', "
        "spectral_param.SpectralNorm(1.0))`; convolutions alike.",
    ),
    Guess(
        _BOTH,
        "OrthogonalLinear OrthoLinear OrthoConv2d UnitaryLinear OrthogonalRegularizer",
        "orthogonium or Keras",
        "Constrain a layer of torch: `spectral_param.constrain(torch.nn.Linear(4, 4), 'weight', "
        "spectral_param.ScaledCayley())`.",
    ),
    Guess(
        _BOTH,
        "MaxNorm MinMaxNorm UnitNorm RowNorm ColumnNorm max_norm unit_norm FrobeniusLinear",
        "Keras, torch or deel-torchlip",
        "Take `spectral_param.FrobeniusNorm(2.0, 'at_most', dim=0)` for the length of each row or filter, "
        "`spectral_param.FrobeniusNorm(1.0, dim=1)` for columns of unit length, and without dim for the "
        "whole weight.",
    ),
    Guess(
        _BOTH,
        "NonNeg NonNegative Positive DaleLaw Mask",
        "Keras or nn4n",
        "Take `spectral_param.SignPattern(torch.ones(4, 4))`, with a sign, a zero or NaN for each entry.",
    ),
    Guess(
        _BOTH,
        "SpectralRadius Stable Schur EigenvalueNorm Eigenvalues",
        "",
        "Take `spectral_param.SpectralRadiusNorm(0.9)` for the spectral radius, "
        "`spectral_param.SchurForm(radius=0.9)` for each eigenvalue, or `spectral_param.LyapunovForm(0.9)` "
        "for a bound of all powers.",
    ),
    Guess(
        _BOTH,
        "Simplex Softmax Sinkhorn BirkhoffPolytope RowStochastic",
        "",
        "Take `spectral_param.Stochastic()` or `spectral_param.DoublyStochastic()`.",
    ),
    Guess(
        _TOP,
        "register_parametrization parametrize parametrizations register apply_constraint",
        "torch",
        "Take `spectral_param.constrain`, or torch's `torch.nn.utils.parametrize.register_parametrization`.",
    ),
    Guess(
        _TOP,
        "remove_parametrizations unconstrain remove_constraints vanilla_export remove_spectral_norm",
        "torch or deel-torchlip",
        "Take `spectral_param.remove`.",
    ),
    Guess(
        _TOP,
        "project clip_weights project_ ManifoldParameter RiemannianAdam RiemannianSGD",
        "geoopt or Keras",
        "Pass an optimizer of torch to `spectral_param.constrain`, as optimizer=; one tensor is projected "
        "by `spectral_param.Parametrization.project`.",
    ),
    Guess(
        ("", "functional"),
        "Muon muon msign newton_schulz orthogonalize",
        "torch or Muon",
        "Pass step='msign' and `torch.optim.SGD` with momentum to `spectral_param.constrain`: steps of equal "
        "singular values, along the set.",
    ),
    # Adapters.
    Guess(
        _BOTH,
        "OFT OFTConfig BOFT BOFTConfig get_peft_model Adapter oft add_adapter inject_adapter",
        "PEFT",
        "Take `spectral_param.nn.adapt`, as in adapters = spectral_param.nn.adapt(model, '*.self_attn').",
    ),
    Guess(
        _BOTH,
        "LoRA LoraConfig lora",
        "PEFT",
        "Take PEFT's, and `spectral_param.constrain` its factors: constrain(model, '*.lora_A.*.weight', "
        "constraint). Orthogonal adapters are `spectral_param.nn.adapt`.",
    ),
    Guess(
        _BOTH,
        "merge merge_and_unload unload merge_adapter",
        "PEFT",
        "Take `spectral_param.remove`, or `spectral_param.nn.Adapters.merge`.",
    ),
    # Networks.
    Guess(
        _BOTH,
        "ContractingLSTM StableLSTM StableGRU",
        "",
        "Take `spectral_param.nn.ContractingGRU(3, 8)`; an LSTM that you have is scaled by "
        "`spectral_param.init.contracting_`.",
    ),
    Guess(
        _BOTH,
        "OrthogonalLSTM OrthogonalGRU UnitaryLSTM",
        "",
        "Constrain the gates of torch's: `spectral_param.constrain(torch.nn.LSTM(3, 8), 'weight_hh_l*', "
        "spectral_param.ScaledCayley())`.",
    ),
    Guess(
        _BOTH,
        "LRU S4 S4D S5 LSSL SSM LinearRNN REN Mamba",
        "",
        "Take `spectral_param.nn.StateSpace(3, 8, 2)`: linear systems with a certified gain.",
    ),
    Guess(
        _BOTH,
        "OrthogonalRNN uRNN UnitaryRNN EURNN SCORNN scoRNN expRNN EXPRNN",
        "",
        "Take `spectral_param.nn.ScoRNN(3, 8)` or `spectral_param.nn.ExpRNN(3, 8)`, orthogonal, "
        "`spectral_param.nn.ScuRNN(3, 8)` or `spectral_param.nn.URNN(3, 8)`, unitary.",
    ),
    Guess(
        _BOTH,
        "GroupSort GroupSort2 FullSort MaxMinActivation",
        "deel-torchlip",
        "Take `spectral_param.nn.MaxMin()`.",
    ),
    Guess(
        _BOTH,
        "ResidualBlock ResNetBlock iResNet InvertibleBlock InvertibleResidual LipschitzResidual ResidualFlow "
        "NormalizingFlow",
        "",
        "Take `spectral_param.nn.Residual(torch.nn.Linear(4, 4))`; where the constant of the function is "
        "below 1 the block has `spectral_param.nn.Residual.inverse` and "
        "`spectral_param.nn.Residual.log_abs_det`.",
    ),
    Guess(
        _BOTH,
        "DEQ MonDEQ DeepEquilibrium EquilibriumLayer FixedPointLayer FixedPoint",
        "",
        "Take `spectral_param.nn.Equilibrium(4, 8)`, whose solution is unique.",
    ),
    Guess(
        _BOTH,
        "DeltaNet GatedDeltaNet DeltaRule HouseholderRNN StateTracking",
        "flash-linear-attention",
        "Take `spectral_param.nn.DeltaProduct(4, 8)`.",
    ),
    Guess(
        _BOTH,
        "ESN Reservoir EchoStateNetwork EchoState",
        "reservoirpy",
        "Fill a matrix by `spectral_param.init.spectral_radius_`, or find its largest multiple that "
        "provably forgets by `spectral_param.init.echo_state_`.",
    ),
    Guess(
        ("nn",),
        "Linear RNN LSTM GRU Conv1d Conv2d Conv3d MultiheadAttention Sequential",
        "torch",
        "Take torch's, such as `torch.nn.LSTM(3, 8)`, and constrain its weights by "
        "`spectral_param.constrain`.",
    ),
    # Analysis and functions.
    Guess(
        ("", "functional", "analysis"),
        "lipschitz_constant lip Lipschitz certify lipschitz_bound",
        "",
        "Take `spectral_param.analysis.lipschitz`, with `spectral_param.analysis.certified_radius`.",
    ),
    Guess(
        _TOP,
        "lipschitz certified_radius",
        "",
        "Take `spectral_param.analysis.lipschitz`, with `spectral_param.analysis.certified_radius`.",
    ),
    Guess(
        ("", "analysis"),
        "contraction_rate forgetting forget fading_memory echo_state_property",
        "",
        "Take `spectral_param.analysis.contraction`, proven, and with inputs= measured.",
    ),
    Guess(
        ("", "analysis"),
        "spectral_radius spectral_abscissa rho radius",
        "",
        "Take `spectral_param.functional.spectral_radius` or `spectral_param.functional.spectral_abscissa`.",
    ),
    Guess(
        ("", "functional"),
        "sinkhorn doubly_stochastic_ birkhoff",
        "",
        "Take `spectral_param.functional.doubly_stochastic`.",
    ),
    Guess(
        ("functional", "analysis"),
        "spectral_norm norm largest_singular_value",
        "torch",
        "Take `torch.linalg.matrix_norm` with ord=2; all of them are "
        "`spectral_param.analysis.singular_values`.",
    ),
    Guess(
        ("functional",),
        "matrix_exp expm matrix_exponential skew_exponential",
        "torch or scipy",
        "Take `spectral_param.functional.exponential`, of skew matrices, or `torch.linalg.matrix_exp`.",
    ),
    Guess(
        ("", "init"),
        "echo_state echo_state_init",
        "",
        "Take `spectral_param.init.echo_state_`, which fills a matrix in place.",
    ),
    Guess(
        ("", "init"),
        "orthogonal_ unitary_ stiefel_ uniform_orthogonal_",
        "torch or geotorch",
        "Take `torch.nn.init.orthogonal_`, or `spectral_param.init.cayley_` and "
        "`spectral_param.init.henaff_`, the starts of the papers.",
    ),
    # Dynamics.
    Guess(
        _FIT,
        "DMD HankelDMD OptDMD BOPDMD DMDc FbDMD StableDMD Koopman EDMD",
        "PyDMD or pykoopman",
        "Take `spectral_param.dynamics.StableLinearModel(rank=2)`; rows are samples, so pass snapshots.T.",
    ),
    Guess(
        _FIT,
        "VAR VARMAX AutoReg ARX ARIMA VARX",
        "statsmodels or SIPPY",
        "Take `spectral_param.dynamics.StableLinearModel(delays=2, offset=True)`.",
    ),
    Guess(
        _FIT,
        "N4SID n4sid SSID system_identification subspace StateSpaceModel PEM ERA SSI ssi Kalman "
        "modal_analysis modes",
        "SIPPY or MATLAB",
        "Take `spectral_param.dynamics.StableLinearModel(states='auto')`.",
    ),
    Guess(
        ("", "analysis", "dynamics"),
        "plot_forecast",
        "",
        "It is `spectral_param.dynamics.StableLinearModel.plot_forecast`, of a model that is fitted.",
    ),
    Guess(
        _FIT,
        "StableModel StableLDS LDS LinearModel fit fit_dmd LinearDynamics forecast",
        "",
        "Take `spectral_param.dynamics.StableLinearModel()`, or `spectral_param.dynamics.fit_stable`.",
    ),
)

_ADVICE = {
    (module, name): guess for guess in GUESSES for module in guess.modules for name in guess.names.split()
}


def answers(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module of this package, which answers guesses.

    Args:
        module: The module's full name.
    """

    def answer(name: str) -> Any:
        guess = _ADVICE.get((module.partition(".")[2], name))
        text = f"module {module!r} has no attribute {name!r}"
        if guess is None:
            raise AttributeError(text)
        origin = f", a name of {guess.of}" if guess.of else ""
        # With ``name`` but no ``obj``, Python does not suggest a name that is spelled alike.
        raise AttributeError(f"{text}{origin}. {guess.advice}", name=name)

    return answer
