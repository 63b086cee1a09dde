"""Faults that test_exponential.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "exponential: the gradient of a power lacks a term",
        "spectral_param/functional/_exponential.py",
        "g_2 = g_2 + A2.mT @ g_4 + g_4 @ A2.mT + g_3 @ A.mT",
        "g_2 = g_2 + A2.mT @ g_4 + g_4 @ A2.mT",
    ),
    Fault(
        "squaring: the gradient of a square is twice that of one factor",
        "spectral_param/functional/_exponential.py",
        "squared = X.mT @ G + G @ X.mT",
        "squared = 2 * X.mT @ G",
    ),
)
