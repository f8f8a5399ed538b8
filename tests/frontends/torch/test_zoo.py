"""Every model of the benchmarks' zoo through export, import and the interpreter, at a shape that was not traced."""

from __future__ import annotations

import inspect

import pytest
import torch

from benchmarks import zoo
from ingot.frontends.torch import export_module, import_exported
from tests.frontends.torch.agree import close, run

SHORT = {"whisper-tiny-encoder": 48, "wav2vec2": 2000, "hubert": 2000}


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_model(name: str) -> None:
    model = zoo.get(name)
    net = model.to_torch()
    dynamic = dict(zip(_arguments(net), model.axes, strict=False))
    traced = SHORT.get(name, 24) if model.length else 0
    program = export_module(net, model.inputs(2, traced), dynamic)
    imported = import_exported(program)
    inputs = model.inputs(1 if model.length else 3, traced // 2 + 2 if model.length else 0)
    with torch.no_grad():
        expected = net(*inputs)
    close(run(imported, *inputs), expected, 1e-4)
    model.__dict__.pop("net", None)


def _arguments(net: torch.nn.Module) -> tuple[str, ...]:
    return tuple(inspect.signature(net.forward).parameters)
