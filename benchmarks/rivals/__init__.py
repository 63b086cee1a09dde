"""Methods of others that fits are compared with."""
