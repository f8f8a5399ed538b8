"""Rewrites found by measurement: data that a search has stored, checked again before it is used."""
