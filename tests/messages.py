"""What is public of a message: the name of the argument or module that it is about, "expected" and "got"."""

from __future__ import annotations

import pytest


def about(*names: str) -> str:
    """Return a pattern of messages that have these regular expressions and say what they expected and got."""
    return "(?s)^" + "".join(rf"(?=.*(?:{word}))" for word in (*names, "expected", "got"))


def refused(*names: str, error: type[Exception] = ValueError) -> pytest.RaisesExc[Exception]:
    """Expect an error that is ``about`` these names."""
    return pytest.raises(error, match=about(*names))
