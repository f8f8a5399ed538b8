"""Comparison of Ingot with other engines, each in its own process, in short bursts in alternation."""
