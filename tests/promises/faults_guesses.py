"""Faults that test_guesses.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "guess: what to use is not said",
        "spectral_param/_guesses.py",
        'f"{text}{origin}. {guess.advice}"',
        'f"{text}{origin}."',
        "answered_with",
    ),
    Fault(
        "slip: a guess is answered with a name that is spelled alike, too",
        "spectral_param/_guesses.py",
        '{guess.advice}", name=name)',
        '{guess.advice}")',
        "spelled_alike",
    ),
    Fault(
        "module of a guess: a module answers with those of another one",
        "spectral_param/_guesses.py",
        'module.partition(".")[2]',
        'module.partition(".")[0]',
        "answered_with",
    ),
)
