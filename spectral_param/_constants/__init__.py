"""Lipschitz constants of single layers, and the walk through a network of known layers."""
