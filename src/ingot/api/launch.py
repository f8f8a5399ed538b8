"""`ingot.launch`."""

from ingot.runtime.ranks.launch import launch

__all__ = ["launch"]
