"""Calls of a compiled model bind as calls of its forward do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ingot.frontends.torch import export_module, import_exported
from ingot.support.errors import InputError
from tests.frontends.torch.agree import run


class Scaled(nn.Module):
    def forward(self, x: Tensor, scale: float = 2.0, mask: Tensor | None = None) -> Tensor:
        y = x * scale
        return y if mask is None else y * mask


X, MASK = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([1.0, 0.0, 1.0])
Call = Callable[[Callable[..., Any]], Any]


def called(example: Any, call: Call) -> Tensor:
    model = import_exported(export_module(Scaled().eval(), example))
    return call(lambda *args, **kwargs: run(model, *args, **kwargs))


@pytest.mark.parametrize(
    ("example", "call"),
    [
        ((X,), lambda m: m(X)),
        ((X,), lambda m: m(X, 2.0, None)),
        ((X,), lambda m: m(mask=None, x=X)),
        ((X, 3.0), lambda m: m(X, 3.0)),
        ((X, 3.0), lambda m: m(X, mask=None, scale=3.0)),
        ((X, 2.0), lambda m: m(X)),
        ({"x": X, "mask": MASK}, lambda m: m(X, 2.0, MASK)),
        ((X, 3.0, MASK), lambda m: m(X, 3.0, mask=MASK)),
    ],
)
def test_arguments_by_position_by_name_or_by_default(example: Any, call: Call) -> None:
    assert torch.equal(called(example, call), call(Scaled()))


@pytest.mark.parametrize(
    ("example", "call", "message"),
    [
        ((X, 3.0), lambda m: m(X), "'scale': expected 3.0, as exported, got 2.0"),
        ((X,), lambda m: m(X, 3.0), "'scale': expected 2.0, as exported, got 3.0"),
        ((X,), lambda m: m(X, mask=MASK), "'mask': expected None, as exported"),
        ((X, 2.0, MASK), lambda m: m(X), "'mask': expected a tensor, got NoneType"),
        ((X,), lambda m: m(X, other=1), "unexpected keyword argument 'other'"),
        ((X,), lambda m: m(), "missing a required argument: 'x'"),
    ],
)
def test_other_values_than_those_traced_are_refused(example: Any, call: Call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        called(example, call)


def test_arrays_are_taken() -> None:
    array = np.array([1.0, 2.0, 3.0], np.float32)
    assert torch.equal(called((X,), lambda m: m(array)), torch.from_numpy(array) * 2)


class Variadic(nn.Module):
    def forward(self, *xs: Tensor, gain: float = 1.0, **extras: Tensor) -> Tensor:
        return (sum(xs) + sum(extras.values())) * gain  # type: ignore[operator,return-value]


def test_variadic_arguments() -> None:
    model = import_exported(torch.export.export(Variadic(), (X, MASK), {"a": X + 1, "b": MASK + 1}))
    assert torch.equal(run(model, X, MASK, b=X, a=MASK), Variadic()(X, MASK, b=X, a=MASK))
    net = Variadic().eval()
    model = import_exported(export_module(net, (X, X)))
    assert torch.equal(run(model, X, MASK), net(X, MASK))
    assert torch.equal(run(model, X, MASK, gain=1.0), net(X, MASK))
    with pytest.raises(InputError, match=r"'gain': expected 1\.0"):
        run(model, X, MASK, gain=2.0)


def test_a_program_without_its_module_has_no_defaults() -> None:
    model = import_exported(torch.export.export(Scaled(), (X, 3.0)))
    assert torch.equal(run(model, X, scale=3.0), X * 3)
    with pytest.raises(InputError, match="missing a required argument: 'scale'"):
        run(model, X)
