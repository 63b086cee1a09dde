"""Plain weights that are put back into a set after each optimizer step: record, steps and hooks."""
