"""The commands that measure, check and show."""
