"""Families of networks as TFLite files: read back, in floats and in int8, beside LiteRT's reference kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flatbuffers")
litert = pytest.importorskip("ai_edge_litert.interpreter")

import ingot  # noqa: E402
from tests.models.nets import FAMILIES, build_net  # noqa: E402

pytestmark = pytest.mark.slow
# in others some operators stay in floats, whose kernels differ in the last bits and then by a level
INT8 = ("resnet", "mobilenet", "densenet", "convnext", "unet", "vit", "bert", "tcn")


@pytest.mark.parametrize("name", FAMILIES)
def test_floats(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    family, net = FAMILIES[name], build_net(name)
    inputs = family.inputs(1, family.lengths[0])
    path = tmp_path / "m.tflite"
    ingot.export(net, path, inputs)
    with torch.no_grad():
        want = net(*inputs)
    references = want if isinstance(want, tuple) else (want,)
    for got, expected in zip(
        ingot.compile(path, cache=False).run([x.numpy() for x in inputs]), references, strict=True
    ):
        assert np.abs(got - expected.numpy()).max() < 2e-6 * np.abs(expected.numpy()).max()


@pytest.mark.parametrize("name", INT8)
def test_int8(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    family, net = FAMILIES[name], build_net(name)
    calls = [tuple(x.numpy() for x in family.inputs(1, family.lengths[0])) for _ in range(4)]
    path = tmp_path / "m.tflite"
    ingot.export(net, path, tuple(map(torch.from_numpy, calls[0])), samples=calls)
    kernels = litert.OpResolverType.BUILTIN_REF
    interpreter = litert.Interpreter(model_path=str(path), experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    model = ingot.compile(path, cache=False)
    for call in calls:
        arrays: list[np.ndarray] = []
        for d, x in zip(interpreter.get_input_details(), call, strict=True):
            scale, zero = d["quantization"]
            q = np.clip(np.rint(x / scale) + zero, -128, 127).astype(np.int8) if scale else x
            interpreter.set_tensor(d["index"], q)
            arrays.append(q)
        interpreter.invoke()
        for mine, d in zip(model.run(arrays), interpreter.get_output_details(), strict=True):
            np.testing.assert_array_equal(mine, interpreter.get_tensor(d["index"]))


def test_a_quantized_model_is_saved(tmp_path: Path) -> None:
    net = build_net("mobilenet")
    samples = [(torch.randn(1, 3, 33, 33).numpy(),) for _ in range(8)]
    quantized = ingot.quantize(net, samples, example_inputs=(torch.randn(1, 3, 33, 33),), seconds=1)
    quantized.save_tflite(tmp_path / "m.tflite", float_edges=True)
    model = ingot.compile(tmp_path / "m.tflite", cache=False)
    with torch.no_grad():
        want = net(torch.from_numpy(samples[0][0])).numpy()
    (got,) = model.run([samples[0][0]])
    assert float((got * want).sum() / np.linalg.norm(got) / np.linalg.norm(want)) > 0.999
