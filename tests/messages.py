"""What is public of a message: the name of the argument or module that it is about, "expected" and "got"."""

from __future__ import annotations

import pytest


def refused(*names: str, error: type[Exception] = ValueError) -> pytest.RaisesExc[Exception]:
    """Expect an error whose message has these regular expressions in it and says what it expected and got."""
    words = "".join(rf"(?=.*(?:{word}))" for word in (*names, "expected", "got"))
    return pytest.raises(error, match=f"(?s)^{words}")
