"""Faults that test_trend.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "drifting: a drift is that of the first recording's first step",
        "spectral_param/dynamics/_fits/measured.py",
        "for Y, _ in self.parts]).mean(axis=0)",
        "for Y, _ in self.parts])[0]",
        "drift",
    ),
    Fault(
        "rest: levels that drift are said to rest somewhere",
        "spectral_param/dynamics/_model/modes.py",
        "driven - (center - A @ center)",
        "driven - c",
        "their_sum",
    ),
    Fault(
        "naive: levels that drift have to beat what does not move",
        "spectral_param/dynamics/_choice/rule.py",
        'set() if driven else {"no change", "drift"}',
        'set() if driven else {"no change"}',
        "others_have_to_beat",
    ),
    Fault(
        "below-one: levels whose radius is below 1 may drift",
        "spectral_param/dynamics/_choice/rule.py",
        "if radius >= 1 else []",
        "if radius else []",
        "line_of_the_table",
    ),
)
