"""Modules that torchao quantized, by tensors of its own and by PT2E, against themselves in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torchao = pytest.importorskip("torchao.quantization")

import ingot  # noqa: E402

pytestmark = pytest.mark.slow  # torchao takes seconds to import

CONFIGS: dict[str, tuple[Callable[[], object], str]] = {
    "weights of 8 bits": (torchao.Int8WeightOnlyConfig, "i8["),
    "bytes": (torchao.Int8DynamicActivationInt8WeightConfig, "i32["),
    "weights of 4 bits": (
        lambda: torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(32)), "u4[",
    ),
}  # fmt: skip


def _net() -> Any:
    torch.manual_seed(3)
    nn = torch.nn
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 33)).eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_tensors_of_levels(name: str) -> None:
    """A module, its exported program; weights are stored as levels, and bytes multiplied as such."""
    config, stored = CONFIGS[name]
    net = copy.deepcopy(_net())
    torchao.quantize_(net, config())
    x = torch.randn(5, 64)
    with torch.no_grad():
        want = net(x)
        program = torch.export.export(net, (x,))
    for model in (ingot.compile(net, (x,)), ingot.compile(program)):
        torch.testing.assert_close(model(x), want, rtol=1e-5, atol=1e-5)
        assert stored in model.dump("fused")


@pytest.mark.parametrize("granularity", [torchao.PerTensor, torchao.PerRow])
def test_floats_of_8_bits(granularity: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which torchao writes for GPUs alone; its own products run on CPUs, too."""
    monkeypatch.setattr("torchao.quantization.quant_api._check_hardware_support", lambda granularity: None)
    net = _net().bfloat16()
    net[2] = torch.nn.Linear(96, 48).bfloat16()
    torchao.quantize_(net, torchao.Float8DynamicActivationFloat8WeightConfig(granularity=granularity()))
    x = torch.randn(32, 64).bfloat16()
    model = ingot.compile(net, (x,))
    with torch.no_grad():
        torch.testing.assert_close(model(x), net(x), rtol=2**-6, atol=2**-6)
    assert "f8e4m3fn[" in model.dump("fused")


@pytest.mark.parametrize("dynamic", [False, True])
def test_pt2e(dynamic: bool) -> None:
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    x86 = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    x = torch.randn(2, 3, 8, 8)
    prepared = pt2e.prepare_pt2e(torch.export.export(net, (x,)).module(), quantizer)
    prepared(x)
    converted = pt2e.convert_pt2e(prepared)
    with torch.no_grad():
        want = converted(x)
        model = ingot.compile(torch.export.export(converted, (x,)))
    torch.testing.assert_close(model(x), want, rtol=1e-5, atol=1e-5)
    assert "dtype = i32" in model.dump("fused")
