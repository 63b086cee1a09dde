"""How constraints come to the weights of a model, and go."""
