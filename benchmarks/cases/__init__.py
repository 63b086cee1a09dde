"""What is timed on a CPU, each case beside its peers."""
