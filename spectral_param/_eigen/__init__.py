"""Eigenvalues and singular values: computation, tracking between reads, proofs and derivatives."""
