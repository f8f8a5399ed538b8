"""Tests of bounds: all but the reader's take PyTorch's networks."""

from importlib.util import find_spec

collect_ignore = (
    [] if find_spec("torch") else ["test_bounds.py", "test_canonical.py", "test_certify.py", "test_error.py"]
)
