"""What joins passes, schedules and targets: `target` is the seam, `build` the way, `cpu` a list of passes."""
