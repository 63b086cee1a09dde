"""Stable least squares of forecasts over several steps."""
