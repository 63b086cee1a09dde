"""Three fits, for noise that drives the system, noise in the measurements, and both."""
