"""Stable least squares of one step."""
