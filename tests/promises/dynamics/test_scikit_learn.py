"""scikit-learn's own checks, and what each that fails cannot know of recordings."""

import warnings

import numpy as np
import pytest
import sklearn
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from spectral_param.dynamics import StableLinearModel
from tests.messages import refused
from tests.promises.dynamics.systems import chain, oscillators


class OfRecordings(StableLinearModel):
    """A model whose X is a recording, whatever targets the checks pass."""

    def fit(self, X, y=None):
        return super().fit(X)

    def score(self, X, y=None):
        return super().score(X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        return tags


ITERATIONS = "max_iter bounds the iterations of several descents, which no single n_iter_ counts"
IGNORED = "the targets are not looked at: X is a recording"
STATES = "Y holds the next states, so it has as many columns as X, and the check passes another number"

OF_RECORDINGS = {
    "check_regressors_train": IGNORED,
    "check_regressor_multioutput": IGNORED,
    "check_supervised_y_no_nan": IGNORED,
    "check_non_transformer_estimators_n_iter": ITERATIONS,
}
OF_PAIRS = dict.fromkeys(
    [
        "check_fit_score_takes_y",
        "check_estimators_overwrite_params",
        "check_dont_overwrite_parameters",
        "check_estimators_fit_returns_self",
        "check_readonly_memmap_input",
        "check_n_features_in_after_fitting",
        "check_positive_only_tag_during_fit",
        "check_estimators_dtypes",
        "check_dtype_object",
        "check_pipeline_consistency",
        "check_estimators_nan_inf",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_regressors_train",
        "check_regressor_data_not_an_array",
        "check_regressor_multioutput",
        "check_regressors_no_decision_function",
        "check_regressors_int",
        "check_non_transformer_estimators_n_iter",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_fit2d_1sample",
        "check_dict_unchanged",
        "check_fit_idempotent",
        "check_fit_check_is_fitted",
        "check_n_features_in",
        "check_fit2d_predict1d",
    ],
    STATES,
)


def expected(estimator):
    return OF_RECORDINGS if isinstance(estimator, OfRecordings) else OF_PAIRS


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # "does not inherit from BaseEstimator": scikit-learn is not needed
    with_checks = parametrize_with_checks(
        [OfRecordings(ridge=1e-6, max_iter=3), StableLinearModel(max_iter=3)],
        expected_failed_checks=expected,
    )


@with_checks
@pytest.mark.turns(2)
def test_checks_of_scikit_learn(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_tags_say_what_is_taken():
    tags = get_tags(StableLinearModel())
    assert tags.target_tags.multi_output
    assert not tags.target_tags.single_output
    assert not tags.target_tags.required
    assert not tags.input_tags.allow_nan
    assert get_tags(StableLinearModel(missing="split")).input_tags.allow_nan


@pytest.mark.parametrize("use", ["predict", "simulate", "score", "to_module"])
def test_a_model_that_is_not_fitted_says_so(use):
    arguments = {"predict": [np.eye(2)], "simulate": [np.ones(2), 3], "score": [np.eye(2)], "to_module": []}
    with pytest.raises(NotFittedError, match=use):
        getattr(StableLinearModel(), use)(*arguments[use])


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler()])
def test_a_scaler_before_pairs_is_noticed_and_before_a_recording_it_is_not(scaler):
    X = oscillators(120, 0.0, 3, modes=2)[0] * [1.0, 5.0, 0.2, 1.0] + 0.3
    pipeline = make_pipeline(scaler, StableLinearModel(offset=True))
    with pytest.warns(UserWarning, match="X was scaled and Y was not"):
        pipeline.fit(X[:-1], X[1:])
    assert pipeline.fit(X).score(X) > 0.999  # the remedy; warnings are errors


def test_a_pipeline_passes_inputs_on_and_can_be_searched():
    X, U, _ = chain(120, 0.05, 0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = StableLinearModel().set_fit_request(U=True).set_score_request(U=True)
        pipeline = make_pipeline(StandardScaler(), model)
        assert pipeline.fit(X, U=U).score(X, U=U) == pytest.approx(
            StableLinearModel().fit(scaled := StandardScaler().fit_transform(X), U=U).score(scaled, U=U)
        )
        radii = {"stablelinearmodel__radius": [0.3, 1.0]}
        found = GridSearchCV(pipeline, radii, cv=TimeSeriesSplit(3), error_score="raise").fit(X, U=U)
        assert found.best_params_ == {"stablelinearmodel__radius": 1.0}
        assert make_pipeline(StandardScaler(), StableLinearModel()).fit(X).score(X) > 0
    with refused("sample_weight"):
        StableLinearModel().fit(X).score(X, sample_weight=np.ones(len(X)))


def test_pairs_that_are_not_scaled_are_fitted_in_silence():
    X, _, _ = chain(60, 0.05, 0)
    StableLinearModel().fit(X[:-1], X[1:])
    X = StandardScaler().fit_transform(X)
    StableLinearModel().fit(X[:-1], X[1:])
