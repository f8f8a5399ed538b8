"""What torch has no decomposition for, as torch code."""
