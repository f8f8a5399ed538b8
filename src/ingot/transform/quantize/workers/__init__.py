"""Measurements of formats in several processes and machines."""
