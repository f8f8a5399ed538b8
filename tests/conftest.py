"""Golden texts: `golden("name", text)` compares with golden/name.txt beside the test; --update-golden writes it.

Whatever a test compiles is verified after every pass, and kernels of equal text are compiled once. What collecting the
tests imported stays to the end, so that Python's collector of cycles need not look at it again and again.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingot.support.cache import DiskCache, sharing

os.environ.setdefault("INGOT_VERIFY", "1")

gc.disable()

Golden = Callable[[str, str], None]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 10, 5)
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden texts instead of comparing with them")
    parser.addoption("--every", type=int, default=1, metavar="N", help="every Nth of the chosen tests")


_cases = Counter[tuple[str, str]]()  # of each sampled test, as far as they are collected


def pytest_itemcollected(item: pytest.Item) -> None:
    """`sampled(n)`: every nth case of a test is fast, from the first on; the others are slow."""
    if mark := item.get_closest_marker("sampled"):
        test = str(item.path), item.name.partition("[")[0]
        if _cases[test] % mark.args[0]:
            item.add_marker(pytest.mark.slow)
        _cases[test] += 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = items[:: config.getoption("--every")]


@pytest.fixture(autouse=True, scope="session")
def kernels_of_all_tests() -> Iterator[None]:
    """Objects are shared by all processes, and from run to run: their keys hold all that makes them what they are."""
    with sharing(DiskCache()):
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    folder = Path(request.path).parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text)
            return
        assert path.is_file(), f"no golden text {path}: run with --update-golden"
        assert text == path.read_text(), f"differs from {path}; if intended, run with --update-golden"

    return compare
