"""Patches for tracing that keep ops whole and sizes open, and rewrites of traced graphs."""
