"""What a message says to do instead can be done: each refusal beside a call that follows its remedy."""

import numpy as np
import pytest
import scipy.sparse
import sklearn
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.model_selection import GridSearchCV

from spectral_param.dynamics import StableLinearModel, fit_stable
from tests.messages import refused

RNG = np.random.default_rng(0)
A = np.array([[0.9, 0.3], [-0.3, 0.9]]) * 0.98
U = RNG.standard_normal((80, 1))
X = np.zeros((81, 2))
for k in range(80):
    X[k + 1] = A @ X[k] + 0.5 * U[k] + 0.01 * RNG.standard_normal(2)
X = X[1:]
Y = X[:, :1] + 0.01 * RNG.standard_normal((80, 1))  # one output, two hidden states
GAP = X.copy()
GAP[40, 0] = np.nan
WIDE = X @ RNG.standard_normal((2, 60))
PULSE = np.zeros((60, 1))
PULSE[0] = 1
RESPONSE = np.zeros((61, 2))
for k in range(60):
    RESPONSE[k + 1] = A @ RESPONSE[k] + PULSE[k]
RESPONSE = RESPONSE[1:] + 1e-3 * RNG.standard_normal((60, 2))


def fit(*data, U=None, **arguments) -> StableLinearModel:
    return StableLinearModel(**arguments).fit(*data, **({} if U is None else {"U": U}))


def at_rest(M: np.ndarray, rows: int = 8) -> np.ndarray:
    return np.vstack([np.zeros((rows, M.shape[1])), M])


def searched() -> GridSearchCV:
    """Choose a ridge for a fit with inputs, as the message of ``score`` says."""
    with sklearn.config_context(enable_metadata_routing=True):
        model = StableLinearModel().set_fit_request(U=True).set_score_request(U=True)
        return GridSearchCV(model, {"ridge": [1e-3, 1e-1]}, cv=3).fit(X[:-1], X[1:], U=U[:-1])


# Each: the refused call, words of the message, and calls that do what it says.
CASES = {
    "derivatives": (
        lambda: fit(X, time="continuous"),
        "derivatives Y",
        [lambda: fit(X, dt=0.1).frequencies_, lambda: fit(X, np.gradient(X, axis=0), time="continuous")],
    ),
    "process with hidden states": (
        lambda: fit(Y, states=2, noise="process"),
        "hidden states are not measured",
        [lambda: fit(Y, delays=2, noise="process"), lambda: fit(Y, states=2, noise="both")],
    ),
    "baseline below radius 1": (
        lambda: fit(X, baseline="drift", radius=0.9),
        "radius >= 1",
        [lambda: fit(X, baseline="drift"), lambda: fit(X, radius=0.9)],
    ),
    "pairs with rows": (
        lambda: fit(X[:-1], X[1:], lead=3),
        "Leave out Y",
        [lambda: fit(X, lead=3)],
    ),
    "continuous with rows": (
        lambda: fit(X[:-1], X[1:], time="continuous", lead=3),
        "leave out time",
        [lambda: fit(X, lead=3)],
    ),
    "delays with states": (
        lambda: fit(Y, states=2, delays=3),
        "states=, a number, without it",
        [lambda: fit(Y, states=2), lambda: fit(Y, delays=3)],
    ),
    "feedthrough without states": (
        lambda: fit(X, U=U, feedthrough=True),
        "Pass states",
        [
            lambda: fit(Y, U=U, feedthrough=True, states=2),
            lambda: fit(Y, U=U, feedthrough=True, states="auto"),
        ],
    ),
    "ridge with auto": (lambda: fit(X, noise="auto", ridge=1.0), "chosen", [lambda: fit(X, noise="auto")]),
    "ridge with a baseline": (
        lambda: fit(X, baseline="drift", ridge=1.0),
        "not fitted",
        [lambda: fit(X, baseline="drift")],
    ),
    "dead times of other inputs": (
        lambda: fit(Y, U=U, states=2, dead_time=(1, 2)),
        "each of 1 inputs",
        [lambda: fit(Y, U=U, states=2, dead_time=(1,)), lambda: fit(Y, U=U, states=2, dead_time=1)],
    ),
    "a gap": (
        lambda: fit(GAP),
        "missing='split'",
        [lambda: fit(GAP, missing="split"), lambda: fit([GAP[:40], GAP[41:]])],
    ),
    "a gap in pairs": (
        lambda: fit(GAP[:-1], X[1:]),
        "Remove these rows",
        [lambda: fit(np.delete(GAP[:-1], 40, axis=0), np.delete(X[1:], 40, axis=0))],
    ),
    "short recordings": (
        lambda: fit([X, X[:2]], delays=4),
        "Leave out shorter",
        [lambda: fit([X], delays=4), lambda: fit([X, X[:2]])],
    ),
    "gaps everywhere": (
        lambda: fit(np.where(np.arange(80)[:, None] % 2, X, np.nan), missing="split"),
        "Interpolate",
        [lambda: fit(X)],
    ),
    "widths": (lambda: fit([X, X[:, :1]]), "as many columns", [lambda: fit([X[:, :1], X[:, :1]])]),
    "inputs as the next states": (
        lambda: fit(X, U),
        "Did you mean U=",
        [lambda: fit(X, U=U)],
    ),
    "rows of inputs": (lambda: fit(X, U=U[:70]), "80 or 79", [lambda: fit(X, U=U), lambda: fit(X, U=U[:79])]),
    "sparse": (
        lambda: fit(scipy.sparse.csr_array(WIDE)),
        "toarray",
        [
            lambda: fit(scipy.sparse.csr_array(WIDE).toarray(), rank=2),
            lambda: fit(TruncatedSVD(2, random_state=0).fit_transform(scipy.sparse.csr_array(WIDE))),
        ],
    ),
    "complex": (lambda: fit(X + 0j), "real and imaginary parts", [lambda: fit(np.hstack([X, U]))]),
    "strings": (lambda: fit(X.astype(str)), r"astype\(float\)", [lambda: fit(X.astype(str).astype(float))]),
    "one axis": (lambda: fit(Y[:, 0]), r"reshape\(-1, 1\)", [lambda: fit(Y[:, 0].reshape(-1, 1))]),
    "three axes": (
        lambda: fit(X.reshape(4, 20, 2)),
        r"list\(X\)",
        [lambda: fit(list(X.reshape(4, 20, 2)))],
    ),
    "lists of columns": (
        lambda: fit([Y[:40, 0], Y[50:, 0]]),
        "numpy.reshape",
        [lambda: fit([np.reshape(x, (-1, 1)) for x in [Y[:40, 0], Y[50:, 0]]])],
    ),
    "constant inputs": (
        lambda: fit(Y, U=np.ones((80, 1)), states=2),
        "Remove them",
        [lambda: fit(Y, states=2), lambda: fit(Y, states=2, offset=True)],
    ),
    "a constant column": (
        lambda: fit(Y * 0 + 1, states=1),
        "Remove them",
        [lambda: fit(Y, states=1)],
    ),
    "an impulse that begins": (
        lambda: fit(RESPONSE[:, :1], U=PULSE, states=2),
        "rows of rest",
        [lambda: fit(at_rest(RESPONSE[:, :1]), U=at_rest(PULSE), states=2)],
    ),
    "the end of pairs": (
        lambda: fit(X[:-1], X[1:]).forecast(3),
        "simulate",
        [lambda: fit(X[:-1], X[1:]).simulate(X[-1], 3)],
    ),
    "a band of pairs": (
        lambda: fit(X[:-1], X[1:]).simulate(X[-1], 3, coverage=0.9),
        "gaussian",
        [
            lambda: fit(X, lead=3).simulate(X[-1], 3, coverage=0.9),
            lambda: fit(X[:-1], X[1:]).simulate(X[-1], 3, coverage=0.9, interval="gaussian"),
        ],
    ),
    "a band beyond the lead": (
        lambda: fit(X, lead=3).forecast(5, coverage=0.9),
        "longer lead",
        [
            lambda: fit(X, lead=5).forecast(5, coverage=0.9),
            lambda: fit(X, lead=3).forecast(5, coverage=0.9, interval="gaussian"),
        ],
    ),
    "inputs left out": (
        lambda: fit(X, U=U).forecast(3),
        "expected inputs U",
        [lambda: fit(X, U=U).forecast(3, U[:3])],
    ),
    "inputs too many": (
        lambda: fit(X).forecast(3, U[:3]),
        "expected no inputs U",
        [lambda: fit(X).forecast(3)],
    ),
    "inputs too few": (
        lambda: fit(X, U=U).simulate(X[-1], 3, U[:2]),
        "one row for each step",
        [lambda: fit(X, U=U).simulate(X[-1], 3, U[:3]), lambda: fit(X, U=U).simulate(X[-1], 3, U[:4])],
    ),
    "score without inputs": (lambda: fit(X, U=U).score(X), "set_score_request", [searched]),
    "lti of derivatives": (
        lambda: fit(X, np.gradient(X, axis=0), time="continuous").to_dlti(),
        "scipy.signal.lti",
        [
            lambda: scipy.signal.lti(
                fit(X, np.gradient(X, axis=0), time="continuous").A_,
                np.zeros((2, 1)),
                np.eye(2),
                np.zeros((2, 1)),
            )
        ],
    ),
    "before fit": (lambda: StableLinearModel().predict(X), "Call fit", [lambda: fit(X).predict(X)]),
    "too few rows of a start": (
        lambda: fit(Y, delays=4).simulate(Y[-2:], 3),
        "at least 4 rows",
        [lambda: fit(Y, delays=4).simulate(Y[-4:], 3)],
    ),
    "other columns": (lambda: fit(X).predict(Y), "2 entries", [lambda: fit(X).predict(X)]),
    "gaps of a start": (
        lambda: fit(X).simulate(GAP[38:41], 3),
        "begin after it",
        [lambda: fit(X).simulate(GAP[41:44], 3)],
    ),
    "few samples": (
        lambda: fit(X[:3]),
        "rank=|ridge",
        [lambda: fit(X[:3], ridge=1e-3), lambda: fit(X[:3], rank=1), lambda: fit(X)],
    ),
    "dependent columns": (
        lambda: fit(np.hstack([X, X.sum(axis=1, keepdims=True)])),
        "independent",
        [
            lambda: fit(X),
            lambda: fit(np.hstack([X, X.sum(axis=1, keepdims=True)]), ridge=1e-3),
            lambda: fit(np.hstack([X, X.sum(axis=1, keepdims=True)]), rank=2),
        ],
    ),
    "abscissa in discrete time": (
        lambda: fit(X, abscissa=0.0),
        "Pass radius",
        [lambda: fit(X, radius=1.0), lambda: fit(X, np.gradient(X, axis=0), abscissa=0.0, time="continuous")],
    ),
    "tensors and arrays": (
        lambda: fit_stable(torch.ones(8, 2), X[:8]),
        "torch.from_numpy",
        [lambda: fit_stable(*map(torch.from_numpy, (X[:-1], X[1:]))), lambda: fit_stable(X[:-1], X[1:])],
    ),
    "few rows to choose": (
        lambda: fit(X[:6], noise="auto", delays=3),
        "noise='process' and ridge > 0",
        [
            lambda: fit(X[:6], noise="process", ridge=1e-2, delays=3),
            lambda: fit(X[:8], noise="auto"),
            lambda: fit(X, noise="auto", delays=3),
        ],
    ),
    "many hidden states": (
        lambda: fit(Y[:20], states=15),
        "Pass fewer",
        [lambda: fit(Y[:20], states=2)],
    ),
    "no rows for hidden states": (
        lambda: fit(Y[:3], states=1),
        "Record more",
        [lambda: fit(Y, states=1)],
    ),
    "inputs that repeat": (
        lambda: fit(Y, U=np.sin(np.arange(80.0))[:, None], states=3),
        "excite",
        [
            lambda: fit(Y, states=3),
            lambda: fit(Y, U=np.sin(np.arange(80.0))[:, None], states=1),
            lambda: fit(Y, U=U, states=3),
        ],
    ),
    "few rows for an order": (
        lambda: fit(Y[:7], U=U[:7], states="auto"),
        "number of states",
        [lambda: fit(Y[:7], U=U[:7], states=1), lambda: fit(Y, U=U, states="auto")],
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # What is told of these few rows is tested elsewhere.
@pytest.mark.parametrize("name", CASES)
@pytest.mark.turns(4)
def test_what_is_refused_can_be_done_as_the_message_says(name) -> None:
    call, words, remedies = CASES[name]
    with refused(words):
        call()
    for remedy in remedies:
        remedy()
