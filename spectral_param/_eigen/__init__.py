"""Eigenvalues and singular values: computed, followed from read to read, proven, differentiated."""
