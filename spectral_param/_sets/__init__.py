"""Sets of matrices that several constraints share: the distance of a matrix from a set, and near members."""
