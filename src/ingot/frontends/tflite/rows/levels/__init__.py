"""Rows on levels."""
