"""Faults that test_dead_time.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "loop: what a controller answers in the same row is taken for an input that acts at once",
        "spectral_param/dynamics/_choice/dead_time.py",
        "if above[1] or not above[1:].any():",
        "if above[:2].any() or not above.any():",
        "in_a_loop",
    ),
    Fault(
        "late: no dead time is looked for",
        "spectral_param/dynamics/_choice/order.py",
        "any(found := heard(recordings)):",
        "any(none):",
        "dead_times_are_found",
    ),
    Fault(
        "unknown: inputs before the recording are taken for its first ones",
        "spectral_param/dynamics/_data/recordings.py",
        "U[first - d : len(U) - d, i]",
        "U[first : , i]",
        "dead_times_are_found",
    ),
    Fault(
        "newest: the oldest row of inputs is taken for the newest",
        "spectral_param/dynamics/_model/use.py",
        "lags - 1 - j // m for j",
        "j // m for j",
        "states_of_the_system",
    ),
    Fault(
        "register: a row of inputs is kept one row too long",
        "spectral_param/dynamics/_model/rollout.py",
        "begin[j % m] + d - 1)",
        "begin[j % m] + max(d - 2, 0))",
        "states_of_the_system",
    ),
    Fault(
        "silent: nothing is said of a fit that explains little",
        "spectral_param/dynamics/_data/remarks.py",
        "if mean < _POOR:",
        "if True:",
        "explains_little",
    ),
    Fault(
        "blocks: dead times are compared on different rows",
        "spectral_param/dynamics/_choice/order.py",
        "rows = shifted(self.recordings, order.dead_time, self.first)\n            problem",
        "rows = shifted(self.recordings, order.dead_time)\n            problem",
        "dead_times",
    ),
    Fault(
        "rivals: feedthrough does not compete with a dead time",
        "spectral_param/dynamics/_choice/order.py",
        "for D in {late[0].feedthrough, both}]",
        "for D in {late[0].feedthrough}]",
        "act_at_once",
    ),
    Fault(
        "unfed: feedthrough is not named where inputs explain little",
        "spectral_param/dynamics/_data/remarks.py",
        '*([] if through else ["feedthrough=True for inputs that act at once"]),',
        "",
        "names_it",
    ),
    Fault(
        "stepped: a step in the first row is refused without its remedy",
        "spectral_param/dynamics/_data/remarks.py",
        "{AT_REST if name == 'inputs' else ''}",
        "",
        "rows_of_rest",
    ),
)
