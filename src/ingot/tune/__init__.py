"""Autotuning: a measured search for the choices that schedules otherwise make by a cost model. See
docs/reference/tuning.md."""
