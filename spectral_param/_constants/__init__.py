"""Lipschitz constants of single layers, and the way through a network of known layers."""
