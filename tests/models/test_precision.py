"""Whole networks with weights in 16 bits, and networks that are of 16 bits themselves, from both frontends."""

from __future__ import annotations

import copy
import io
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

import ingot  # noqa: E402
from ingot.frontends.torch import export_module  # noqa: E402
from ingot.runtime.cpu import device  # noqa: E402
from ingot.support.errors import ArtifactError, InputError  # noqa: E402
from ingot.support.native import host  # noqa: E402
from tests.models.nets import FAMILIES, build_net  # noqa: E402

# of the largest output: the roundoff of the type, times what some ten layers make of it
BOUND = {"bfloat16": 2e-2, "float16": 2e-3}


def _relative_error(got: object, want: object) -> float:
    got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()  # type: ignore[assignment]
    return float((got - want).abs().max() / want.abs().max())  # type: ignore[attr-defined, operator]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FAMILIES)
def test_stored_narrow(name: str) -> None:
    family, net = FAMILIES[name], build_net(name)
    exported = export_module(net, family.inputs(2, family.lengths[0]), family.axes)
    for precision, bound in BOUND.items():
        model = ingot.compile(exported, precision=precision, cache=False, threads=2)
        assert model.program.meta["precision"] == precision
        for batch, length in zip((1, 3), family.lengths, strict=True):
            inputs = family.inputs(batch, length)
            with torch.no_grad():
                want = net(*inputs)
            got = model(*inputs)
            assert got.dtype == torch.float32
            assert _relative_error(got, want) < bound, f"{name} in {precision}"


def _cast(values: tuple, dtype: object) -> tuple:
    return tuple(v.to(dtype) if v.is_floating_point() else v for v in values)


# llama's mask is f32, which PyTorch does not mix with f16
@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama"])
def test_models_of_16_bits_from_pytorch(name: str, dtype: str) -> None:
    """As near to the exact results as PyTorch's own, or nearer: sums are f32, norms and softmax as well."""
    family = FAMILIES[name]
    net = build_net(name).to(getattr(torch, dtype))
    inputs = _cast(family.inputs(2, family.lengths[0]), getattr(torch, dtype))
    with torch.no_grad():
        theirs = net(*inputs)
        exact = copy.deepcopy(net).double()(*_cast(inputs, torch.float64))
    got = ingot.compile(net, inputs, cache=False, threads=2)(*inputs)
    assert got.dtype == theirs.dtype and got.shape == theirs.shape
    assert _relative_error(got, exact) <= 1.5 * _relative_error(theirs, exact) + BOUND[dtype] / 2, name


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["resnet", "mobilenet", "lstm", "bert", "vit"])
def test_models_of_16_bits_from_onnx(name: str) -> None:
    family = FAMILIES[name]
    net = build_net(name).half()
    inputs = _cast(family.inputs(2, family.lengths[0]), torch.float16)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, inputs, file, opset_version=17, dynamo=False)
    got = ingot.compile(onnx.load_from_string(file.getvalue()), cache=False, threads=2)(
        *(np.asarray(x) for x in inputs)
    )
    with torch.no_grad():
        theirs = net(*inputs)
        exact = copy.deepcopy(net).double()(*_cast(inputs, torch.float64))
    assert np.asarray(got).dtype == np.float16
    assert _relative_error(got, exact) <= 1.5 * _relative_error(theirs, exact) + BOUND["float16"] / 2


@pytest.mark.skipif("avx512bf16" not in host(), reason="this machine's code has no dot instructions")
def test_code_with_dot_instructions_is_refused_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = torch.nn.Linear(32, 16).eval()
    model = ingot.compile(net, (torch.randn(2, 32),), precision="bfloat16", cache=False)
    path = tmp_path / "m.ingot"
    model.save(path)
    lesser = replace(host(), features=tuple(f for f in host().features if f != "avx512bf16"))
    monkeypatch.setattr(device, "host", lambda: lesser)
    with pytest.raises(ArtifactError, match="avx512bf16"):
        ingot.load(path)


def test_precision_is_part_of_the_cache_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    net, x = torch.nn.Linear(300, 16).eval(), torch.randn(2, 300)
    outputs = [ingot.compile(net, (x,), precision=p)(x) for p in ("float32", "bfloat16", "float16", "float32")]
    assert torch.equal(outputs[0], outputs[3])
    assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    with pytest.raises(InputError, match="float32 or bfloat16 or float16"):
        ingot.compile(net, (x,), precision="bf16")
