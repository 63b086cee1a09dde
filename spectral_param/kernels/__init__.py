"""Optional fast paths for particular hardware. Nothing here is imported until it is used."""
