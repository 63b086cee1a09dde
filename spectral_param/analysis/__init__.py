"""Analyses of recurrent networks and their weights: spectra, gradients, memory, transient growth.

The functions take tensors, and return tensors in double precision and without a graph. The functions
``plot_...`` draw the results of the others. They need matplotlib (the extra ``plot``) and raise
``ImportError`` without it. Wrong input raises a :class:`ValueError`, which says what to pass.
"""

from typing import TYPE_CHECKING

from spectral_param import _guesses
from spectral_param.analysis._certified_radius import certified_radius
from spectral_param.analysis._contraction import contraction
from spectral_param.analysis._displacement import displacement
from spectral_param.analysis._fisher import fisher_memory, fisher_memory_bound
from spectral_param.analysis._gradients import gradient_norm_bounds, gradient_norms, loss_gradient_norms
from spectral_param.analysis._h_infinity import h_infinity
from spectral_param.analysis._lipschitz import lipschitz
from spectral_param.analysis._lyapunov import lyapunov_certificate
from spectral_param.analysis._measured_contraction import MeasuredContraction
from spectral_param.analysis._orthogonality import Recorder, orthogonality_error
from spectral_param.analysis._plot import (
    plot_angles,
    plot_choice,
    plot_eigenvalues,
    plot_fisher_memory,
    plot_gradient_norm_bounds,
    plot_gradient_norms,
    plot_loss_gradient_norms,
    plot_modes,
    plot_recording,
    plot_schur_form,
    plot_singular_values,
    plot_subdiagonals,
    plot_transient_growth,
)
from spectral_param.analysis._schur_structure import (
    LowerSchur,
    lower_schur,
    schur_eigenvalues,
    subdiagonal_magnitudes,
)
from spectral_param.analysis._spectra import (
    departure_from_normality,
    eigenvalues,
    singular_values,
    spectral_summary,
)
from spectral_param.analysis._stabilisation import plot_stabilisation
from spectral_param.analysis._stationary import StationaryDistribution, stationary_distribution
from spectral_param.analysis._transient import TransientGrowth, kreiss_constant, transient_growth
from spectral_param.functional._contraction import ContractionCertificate
from spectral_param.functional._lyapunov import LyapunovCertificate
from spectral_param.functional._network_contraction import Contraction

__all__ = [
    "Contraction",
    "ContractionCertificate",
    "LowerSchur",
    "LyapunovCertificate",
    "MeasuredContraction",
    "Recorder",
    "StationaryDistribution",
    "TransientGrowth",
    "certified_radius",
    "contraction",
    "departure_from_normality",
    "displacement",
    "eigenvalues",
    "fisher_memory",
    "fisher_memory_bound",
    "gradient_norm_bounds",
    "gradient_norms",
    "h_infinity",
    "kreiss_constant",
    "lipschitz",
    "loss_gradient_norms",
    "lower_schur",
    "lyapunov_certificate",
    "orthogonality_error",
    "plot_angles",
    "plot_choice",
    "plot_eigenvalues",
    "plot_fisher_memory",
    "plot_gradient_norm_bounds",
    "plot_gradient_norms",
    "plot_loss_gradient_norms",
    "plot_modes",
    "plot_recording",
    "plot_schur_form",
    "plot_singular_values",
    "plot_stabilisation",
    "plot_subdiagonals",
    "plot_transient_growth",
    "schur_eigenvalues",
    "singular_values",
    "spectral_summary",
    "stationary_distribution",
    "subdiagonal_magnitudes",
    "transient_growth",
]

if not TYPE_CHECKING:  # Type checkers need no __getattr__.
    __getattr__ = _guesses.answers(__name__)
