"""Tiny networks of every family, end to end, from PyTorch and from ONNX, at two shapes without compiling again."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

import ingot  # noqa: E402
from tests.conformance.c import needs_gcc, run_program  # noqa: E402
from tests.models.nets import FAMILIES, build_net  # noqa: E402

TOLERANCE = 1e-5


def _check(name: str, run: object, net: object) -> None:
    family = FAMILIES[name]
    for batch, length in zip((1, 3), family.lengths, strict=True):
        inputs = family.inputs(batch, length)
        with torch.no_grad():
            want = net(*inputs)  # type: ignore[operator]
        got = torch.as_tensor(run(*inputs))  # type: ignore[operator]
        assert got.shape == want.shape and got.dtype == want.dtype
        error = float((got - want).abs().max() / want.abs().max())
        assert error < TOLERANCE, f"{name} at batch {batch}: off by {error:.1e} of the largest output"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FAMILIES)
def test_from_pytorch(name: str) -> None:
    family, net = FAMILIES[name], build_net(name)
    example = family.inputs(2, family.lengths[0])
    model = ingot.compile(net, example, dynamic=family.axes, cache=False, threads=2)
    _check(name, model, net)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FAMILIES)
def test_from_onnx(name: str) -> None:
    family, net = FAMILIES[name], build_net(name)
    names = [f"x{i}" for i in range(len(family.axes))]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            family.inputs(2, family.lengths[0]),
            file,
            input_names=names,
            dynamic_axes=dict(zip(names, family.axes, strict=True)),
            opset_version=17,
            dynamo=False,
        )
    model = ingot.compile(onnx.load_from_string(file.getvalue()), cache=False, threads=2)
    _check(name, lambda *xs: model(*(np.asarray(x) for x in xs)), net)


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_as_c(name: str, tmp_path: Path) -> None:
    family, net = FAMILIES[name], build_net(name)
    inputs = family.inputs(1, family.lengths[0])
    model = ingot.compile(net, inputs, target="c", cache=False)
    (got,) = run_program(model.program, [x.numpy() for x in inputs], tmp_path)
    with torch.no_grad():
        want = net(*inputs).numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())
