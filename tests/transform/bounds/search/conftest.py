"""Tests of searches: all but the reader's take PyTorch's networks."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_boxes.py", "test_certify.py"]
