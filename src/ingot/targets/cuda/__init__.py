"""NVIDIA GPUs: kernel IR of tiles printed as Triton, compiled ahead of time to cubins."""
