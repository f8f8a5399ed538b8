"""Measured search for what schedules otherwise choose by a model of the machine. See docs/reference/tuning.md."""
