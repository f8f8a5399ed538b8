"""Schedules for circuits: one loop nest for each group."""
