"""Schedules for GPUs: from fused groups to kernels whose values are tiles, one program a chunk."""
