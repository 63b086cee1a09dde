"""Data and generators of the benchmarks, by public names of the library alone. Tests use them, too."""
