"""Faults that test_calls.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "alike: all rows before a forecast weigh alike, whatever drives the system",
        "spectral_param/dynamics/_fits/measured.py",
        "return weight_of(A, [(Y, U @ B.T) for Y, U in self.parts], measured)",
        "return 0.0",
        "more_rows",
    ),
    Fault(
        "last-row: the inputs of the last measured row are those of the recording",
        "spectral_param/dynamics/_estimator.py",
        "self._end = last.x, last.u[: len(last.x) - 1]",
        "self._end = last.x, last.u",
        "changes_what_a_call_needs",
    ),
    Fault(
        "first-recording: the forecast follows the first recording",
        "spectral_param/dynamics/_estimator.py",
        "last = recordings[-1]",
        "last = recordings[0]",
        "follows_the_last",
    ),
    Fault(
        "hungry: a dead time that was found asks for as many rows",
        "spectral_param/dynamics/_model/hidden.py",
        "        return self.lags\n",
        "        return self.lags + max(self.dead, default=0)\n",
        "changes_what_a_call_needs",
    ),
    Fault(
        "gain: noise in the measurements has a filter's gain",
        "spectral_param/dynamics/_choice/order.py",
        'options = options._replace(filter=kind == "both")',
        "options = options._replace(filter=True)",
        "fits_of_hidden_states",
    ),
    Fault(
        "column: always the first column is drawn",
        "spectral_param/dynamics/_model/use.py",
        "ax.plot(ahead, mean[:, column]",
        "ax.plot(ahead, mean[:, 0]",
        "drawn",
    ),
    Fault(
        "outputs: the gain stays in the coordinates of the hidden states",
        "spectral_param/dynamics/_model/hidden.py",
        "K=self.C @ self.K,",
        "K=self.K,",
        "has_them_as_outputs",
    ),
)
