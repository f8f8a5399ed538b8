"""Programs on AMD's GPUs."""
