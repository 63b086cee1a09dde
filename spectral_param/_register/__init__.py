"""Registration and removal of constraints on the weights of a model."""
