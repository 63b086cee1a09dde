"""A fitted model: its matrices, and what follows from them."""
