"""Tests of bounds take PyTorch's networks."""

from importlib.util import find_spec

collect_ignore = (
    [] if find_spec("torch") else ["test_bounds.py", "test_branches.py", "test_canonical.py", "test_error.py"]
)
