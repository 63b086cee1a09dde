"""scikit-learn's protocol without scikit-learn: arguments, tags, metadata routing, what is not fitted."""

from __future__ import annotations

import copy
import inspect
import sys
from typing import Any, TypeVar

Self = TypeVar("Self", bound="Estimator")


class NotFittedError(ValueError, AttributeError):
    """A model is used before ``fit``, where scikit-learn and its error of this name are not imported."""


def not_fitted(message: str) -> Exception:
    """Return scikit-learn's NotFittedError if scikit-learn is imported, else the one above."""
    if "sklearn" in sys.modules:
        from sklearn import exceptions

        error: Exception = exceptions.NotFittedError(message)
        return error
    return NotFittedError(message)


class Estimator:
    """Arguments by name, tags, and requests for metadata: U in fit, predict and score."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor by name; ``deep`` has no effect."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self: Self, **params: Any) -> Self:
        """Return this model after setting arguments of the constructor by name.

        Raises:
            ValueError: If there is no such argument.
        """
        names = self.get_params()
        for name, value in params.items():
            if name not in names:
                raise ValueError(f"{type(self).__name__}: expected one of {', '.join(names)}, got {name!r}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self)).parameters.items()}
        changed = {
            name: value
            for name, value in self.get_params().items()
            if value is not defaults[name] and repr(value) != repr(defaults[name])
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a regressor of several outputs that does not need targets."""
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=False, single_output=False, multi_output=True),
            regressor_tags=RegressorTags(poor_score=True),
            input_tags=InputTags(allow_nan=getattr(self, "missing", "raise") == "split"),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_")

    def set_fit_request(self: Self, *, U: bool | str | None = None) -> Self:
        """Say whether scikit-learn passes inputs U to ``fit``.

        This needs ``sklearn.set_config(enable_metadata_routing=True)``. After
        ``model.set_fit_request(U=True).set_score_request(U=True)``, a search by
        ``GridSearchCV(model, ...).fit(X, Y, U=U)`` splits U as it splits X.

        Args:
            U: True passes U; False does not; a name passes the argument of this name as U; None raises an
                error if U is given.

        Returns:
            This model.
        """
        return self._requesting("fit", U)

    def set_predict_request(self: Self, *, U: bool | str | None = None) -> Self:
        """Say whether scikit-learn passes inputs U to ``predict``; see :meth:`set_fit_request`.

        Args:
            U: As for :meth:`set_fit_request`.

        Returns:
            This model.
        """
        return self._requesting("predict", U)

    def set_score_request(self: Self, *, U: bool | str | None = None) -> Self:
        """Say whether scikit-learn passes inputs U to ``score``; see :meth:`set_fit_request`.

        Args:
            U: As for :meth:`set_fit_request`.

        Returns:
            This model.
        """
        return self._requesting("score", U)

    def _requesting(self: Self, method: str, alias: bool | str | None) -> Self:
        self._metadata_request = self.get_metadata_routing()
        getattr(self._metadata_request, method).add_request(param="U", alias=alias)
        return self

    def get_metadata_routing(self) -> Any:
        """Return scikit-learn's request for metadata: U, as ``set_fit_request`` and the like say."""
        from sklearn.utils.metadata_routing import MetadataRequest

        if hasattr(self, "_metadata_request"):
            return copy.deepcopy(self._metadata_request)
        request = MetadataRequest(owner=self)
        for method in ("fit", "predict", "score"):
            getattr(request, method).add_request(param="U", alias=None)
        request.score.add_request(param="sample_weight", alias=None)
        return request
