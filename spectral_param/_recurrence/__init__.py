"""Running recurrent cells over whole sequences: a reference loop, faster implementations, and the choice."""

__all__: list[str] = []
