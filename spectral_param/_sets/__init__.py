"""Sets of matrices: how far a matrix is outside, and a member near it."""
