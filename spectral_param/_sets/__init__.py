"""Sets of matrices that several constraints share: how far a matrix is outside, and a member near it."""
