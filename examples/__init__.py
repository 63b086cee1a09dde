"""What the library is for: scripts of the gallery, the demo, and the papers' experiments."""
