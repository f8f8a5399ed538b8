"""Submodules of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def attach(
    package: str, names: Sequence[str], lazy: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: its public `names` and its submodules, of which `lazy` are imported by
    their first use."""

    def attribute(name: str) -> Any:
        if name not in lazy:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    def directory() -> list[str]:
        own = vars(sys.modules[package])
        loaded = [n for n, v in own.items() if isinstance(v, ModuleType) and v.__name__ == f"{package}.{n}"]
        return sorted({*names, *lazy, *loaded})

    return attribute, directory
