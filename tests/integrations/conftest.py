"""These tests need what the frontends' tests need."""

from importlib.util import find_spec

from tests.frontends.torch.conftest import fresh_dynamo

collect_ignore_glob = [] if find_spec("torch") else ["test_torch_*.py"]

__all__ = ["fresh_dynamo"]
