"""Whole sequences of recurrent cells: the choice of a path, a plain loop, and the fast paths beside it."""

__all__: list[str] = []
