"""Kernels as code objects of AMD's GPUs, by the compiler in Triton's wheel. None of them runs here."""

from __future__ import annotations

import copy
import struct
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import ingot  # noqa: E402
from ingot import ops  # noqa: E402
from ingot.ir.node import Graph, Input, Node, Op  # noqa: E402
from ingot.ir.types import TensorType, f16  # noqa: E402
from ingot.pipeline.build import build_program  # noqa: E402
from ingot.pipeline.target import features_of  # noqa: E402
from ingot.support.cubins import unpack  # noqa: E402
from ingot.support.errors import IngotError, InputError  # noqa: E402
from tests.conformance.samples import OPS, STATIC_ONLY, Sample, combine  # noqa: E402
from tests.conformance.targets import COLLECTIVES, LONG, NO_TILES  # noqa: E402

MI300 = features_of("hip:gfx942")
QUICK = {"add", "attention_with_sums", "clz", "dot_general", "popcnt", "round_nearest_even", "softmax", "sort"}
_AMDGPU, _GFX942 = 224, 0x4C  # e_machine, and the low byte of e_flags


def compiled(graph: Graph) -> int:
    """How many kernels became code objects of the right machine."""
    kernels = unpack(build_program(graph, MI300, 1).code["hip"], "gfx942")
    for kernel in kernels.values():
        assert kernel.cubin[:4] == b"\x7fELF" and kernel.threads % 64 == 0
        assert struct.unpack_from("<H", kernel.cubin, 18) == (_AMDGPU,)
        assert kernel.cubin[48] == _GFX942
        assert kernel.name.encode() in kernel.cubin
    return len(kernels)


def first_sample(cls: type[Op]) -> Sample | None:
    for op, arrays in cls.samples():
        sample = Sample.static(op, tuple(map(np.asarray, arrays)))
        results = op.infer(*sample.types)
        types = (*sample.types, *(results if isinstance(results, tuple) else (results,)))
        if not any(t.dtype.name in NO_TILES for t in types):
            return sample
    return None


@pytest.mark.parametrize(
    "cls",
    [
        pytest.param(c, id=c.name, marks=() if c.name in QUICK else pytest.mark.slow)
        for c in OPS
        if c.name not in COLLECTIVES and c.name not in LONG and not issubclass(c, STATIC_ONLY)
    ],
)
def test_a_sample_of_each_op(cls: type[Op]) -> None:
    sample = first_sample(cls)
    if sample is not None:
        compiled(combine([sample]).graph)


def test_a_block_of_a_transformer() -> None:
    x, w, v = (Input(n, TensorType(f16, s))() for n, s in (("x", (2, 4, 48, 64)), ("w", (64, 128)), ("v", (128, 64))))
    y: Node = ops.Attention("upper_left", 0.125)(x, x, x)
    y = ops.MatMul()(ops.Gelu()(ops.MatMul()(y, w)), v)
    assert compiled(Graph((x, w, v), (ops.LayerNorm((3,))(ops.Add()(x, y)),))) >= 4


def test_other_architectures_are_refused() -> None:
    with pytest.raises(InputError, match="gfx90a, gfx942, gfx950, gfx1100"):
        features_of("hip:gfx803")


def _models() -> dict[str, tuple[Any, Any]]:
    from torch import nn

    convolution = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layer, self.head = nn.Embedding(50, 16), nn.LSTM(16, 24), nn.Linear(24, 50)

        def forward(self, ids: Any) -> Any:
            return self.head(self.layer(self.embedding(ids))[0][-1])

    image, tokens, ids = torch.randn(2, 3, 16, 16), torch.randn(2, 9, 32), torch.randint(0, 50, (7, 2))
    half = copy.deepcopy(convolution).half(), image.half()
    return {"convolutions": (convolution, image), "half": half, "attention": (layer, tokens), "lstm": (Last(), ids)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolutions", "half", "attention", "lstm"])
def test_models(name: str) -> None:
    net, x = _models()[name]
    model = ingot.compile(net.eval(), (x,), target="hip:gfx942", cache=False)
    assert len(unpack(model.program.code["hip"], "gfx942")) >= 3
    with pytest.raises(IngotError, match="AMD"):
        model(x)
