"""What constraints and recurrences cost, measured beside their peers."""
