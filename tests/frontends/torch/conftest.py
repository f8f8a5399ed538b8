"""These tests need PyTorch; those on whole models also what the benchmarks' zoo needs."""

import gc
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["*test_*.py"]  # of the rooms within, too
if not (find_spec("timm") and find_spec("transformers")):
    collect_ignore_glob.append("test_zoo.py")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Nothing that an earlier test compiled, and nothing left behind: compiled models hold their threads."""
    import torch

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    gc.collect()
