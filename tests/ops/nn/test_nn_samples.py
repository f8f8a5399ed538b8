"""Every MODEL op on its own samples: type rule = reference = lowering."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import ingot.ops.nn
from ingot.ir.node import Op
from tests.ops.nn.check import check

for module in pkgutil.iter_modules(ingot.ops.nn.__path__):
    importlib.import_module(f"ingot.ops.nn.{module.name}")

OPS = sorted((c for c in Op.REGISTRY.values() if c.__module__.startswith("ingot.ops.nn.")), key=lambda c: c.name)


@pytest.mark.parametrize("cls", OPS, ids=lambda c: c.name)
def test_samples(cls: type[Op]) -> None:
    count = 0
    for op, inputs in cls.samples():
        check(op, *inputs)
        count += 1
    assert count, f"{cls.__name__} has no samples"
