"""All sizes at which the code changes from one path to another, with the reasons.

``python -m benchmarks paths`` times both paths at each of these sizes, on one thread and with torch's default
threads.
"""

from __future__ import annotations

# Up to products of n x n matrices of this size, numpy multiplies faster, because its OpenBLAS stays on one
# thread. Above this size torch is used, because numpy would have to wait for torch's threads.
NUMPY_PRODUCT = 64

# Up to this size, LAPACK's decomposition gives both vectors of the leading eigenvalue; for larger matrices,
# inverse iteration does.
BOTH_VECTORS = 24
# A spectral radius is tracked from the first size on; below, all eigenvalues cost about as much as a step of
# tracking. Below the first size, and in batches up to the second, numpy and scipy find the vectors of one
# matrix after the other. torch needs fewer calls for a larger batch, and takes longer for one matrix.
TRACKED_RADIUS, ONE_BY_ONE = 96, 16

# A norm is tracked if the smaller side has at least this size. At this size a step of tracking takes about as
# long as LAPACK on one thread; with more threads, LAPACK stalls for milliseconds when OpenBLAS wakes them.
TRACKED_NORM = 64

# A tracked norm forms the Gram matrix if one side is at least this many times the other, and products of T
# with thin blocks would take as long. If the sides are closer, thin products are faster.
GRAM_SIDES = 3

# Inverses for real square or small weights of the Cayley transform are scipy's below this size, where its
# OpenBLAS stays on one thread. If OpenBLAS wakes other threads, torch waits for them, which took ten times as
# long.
SCIPY_INVERSE = 100
# From the first size on, a single matrix is inverted by blocks, down to blocks of the second size.
BLOCKED_INVERSE, INVERSE_LEAF = 128, 64

# Layers of rotations that are multiplied into one block. At n = L = 512, 16 layers are as fast, 4 layers are
# slower.
GIVENS_LAYERS = 8

# Numpy computes the steps of a recurrence faster than torch if a step has at most this many numbers.
NUMPY_STATES = 1024

# Sparse matrices: up to this size all eigenvalues take a tenth of a second, less than a proof.
SPARSE_DENSE = 500
# If no proof succeeds, all eigenvalues are computed up to this size, which takes a minute and 200 MB.
SPARSE_DENSE_LIMIT = 5000
