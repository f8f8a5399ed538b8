"""NVIDIA GPUs as a device, through the driver alone."""
