"""Eigenvalues and singular values: computation, tracking from read to read, proofs and derivatives."""
