"""Running recurrent cells over sequences: a reference loop, faster implementations, and their choice."""

__all__: list[str] = []
