"""These tests need PyTorch; those on whole models also what the benchmarks' zoo needs."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
if not (find_spec("timm") and find_spec("transformers")):
    collect_ignore_glob.append("test_zoo.py")
