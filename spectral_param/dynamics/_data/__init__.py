"""What a user passes: arrays, recordings, the states that they make, and what to say of them."""
