"""Runs compiled programs with numpy alone."""
