"""Names and submodules of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def attach(
    package: str, names: Sequence[str], modules: Sequence[str], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: its public `names` and its submodules.

    Imported by their first use: of the submodules these `modules`, and of the names those in `homes`, from the modules
    that it gives.
    """

    def attribute(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def directory() -> list[str]:
        attributes = vars(sys.modules[package])
        loaded = [n for n, v in attributes.items() if isinstance(v, ModuleType) and v.__name__ == f"{package}.{n}"]
        return sorted({*names, *modules, *loaded})

    return attribute, directory
