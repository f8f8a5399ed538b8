"""Pools, padding and remainders beside ONNX Runtime, and sizes that would change a rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.support.errors import InputError

ort = pytest.importorskip("onnxruntime")


def one_op(op: str, *shapes: tuple[int | str, ...], opset: int = 22, **attributes: Any) -> onnx.ModelProto:
    """A model of one op on floats."""
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=True)]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)], "g", inputs, [helper.make_empty_tensor_value_info("y")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def by_onnxruntime(model: onnx.ModelProto, *arrays: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {f"x{i}": a for i, a in enumerate(arrays)})[0]


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


POOLS = ("MaxPool", "AveragePool", "LpPool")


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [(3, 2, 2), (4, 3, 2), (5, 3, 3), (4, 4, 1), (3, 1, 2), (3, 2, 1), (5, 2, 2)]
)
def test_a_pool_of_less_than_its_window(op: str, kernel: int, stride: int, size: int) -> None:
    x = f32(1, 2, size)
    model = one_op(op, x.shape, kernel_shape=[kernel], strides=[stride])
    (got,) = interpret(import_onnx(model), [x])
    np.testing.assert_allclose(got, by_onnxruntime(model, x), rtol=1e-6)


@pytest.mark.parametrize("op", [*POOLS, "Conv", "ConvTranspose"])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_at_open_sizes_that_hold_none(op: str, stride: int) -> None:
    """An error where ONNX Runtime has one, or else its result."""
    is_convolution = op.startswith("Conv")
    shapes: list[tuple[int | str, ...]] = [("a", 1, "c", "d"), *([(1, 1, 3, 3)] if is_convolution else [])]
    attributes: dict[str, Any] = {"pads": [2, 2, 2, 2]} if op == "ConvTranspose" else {}
    model = one_op(op, *shapes, kernel_shape=[3, 3], strides=[stride] * 2, **attributes)
    compiled = ingot.compile(model, threads=1, cache=False)
    for shape in ((1, 1, 2, 5), (1, 1, 1, 1), (2, 1, 2, 2), (1, 1, 0, 5), (0, 1, 4, 4), (0, 1, 2, 2), (1, 1, 4, 5)):
        arrays = [f32(*shape), *([f32(1, 1, 3, 3)] if is_convolution else [])]
        try:
            want = by_onnxruntime(model, *arrays)
        except Exception:
            with pytest.raises(InputError):
                compiled(*arrays)
        else:
            np.testing.assert_allclose(compiled(*arrays), want, rtol=1e-4, atol=1e-5)


TRANSPOSED: dict[str, dict[str, Any]] = {
    "upper": {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    "lower": {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    "dilated": {"auto_pad": "SAME_UPPER", "strides": [3, 3], "dilations": [2, 1]},
    "a result that is told": {"output_shape": [5, 4], "strides": [3, 2]},
    "that is told and grown": {
        "output_shape": [7, 6], "strides": [2, 2], "auto_pad": "SAME_UPPER", "output_padding": [1, 0]
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_of_open_sizes(name: str) -> None:
    model = one_op("ConvTranspose", ("a", 1, "c", "d"), (1, 2, 3, 3), kernel_shape=[3, 3], **TRANSPOSED[name])
    graph = import_onnx(model)
    for x in (f32(2, 1, 4, 5), f32(1, 1, 7, 5), f32(1, 1, 3, 3)):
        (got,) = interpret(graph, [x, w := f32(1, 2, 3, 3)])
        np.testing.assert_allclose(got, by_onnxruntime(model, x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", [*POOLS, "Conv"])
def test_a_window_must_fit_into_a_dynamic_size(op: str) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [3], "strides": [2]}
    model = one_op(op, *(((1, 1, "n"), (1, 1, 3)) if op == "Conv" else ((1, 1, "n"),)), **attributes)
    graph = import_onnx(model)
    weights = [f32(1, 1, 3)] if op == "Conv" else []
    assert interpret(graph, [f32(1, 1, 3), *weights])[0].shape == (1, 1, 1)
    with pytest.raises(InputError, match=r"n in \[3"):
        interpret(graph, [f32(1, 1, 2), *weights])


def test_a_window_must_fit_into_a_size_of_two_symbols() -> None:
    graph = import_onnx(one_op("MaxPool", ("a", "b", "a + b"), kernel_shape=[4]))
    with pytest.raises(InputError):
        interpret(graph, [f32(1, 2, 3)])
    assert interpret(graph, [f32(2, 2, 4)])[0].shape == (2, 2, 1)


@pytest.mark.parametrize("size", ["n", None])
@pytest.mark.parametrize("op", ["AveragePool", "LpPool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_pools_cut_what_lies_between_windows(op: str, auto_pad: str, size: str | None) -> None:
    for kernel, stride, length in ((1, 3, 9), (1, 2, 10), (2, 4, 11), (3, 4, 9), (3, 2, 8), (2, 3, 10)):
        x = f32(1, 2, length)
        model = one_op(op, (1, 2, size or length), kernel_shape=[kernel], strides=[stride], auto_pad=auto_pad)
        (got,) = interpret(import_onnx(model), [x])
        cut = -((-(-length // stride) - 1) * stride + kernel - length)
        if auto_pad == "SAME_UPPER" or cut <= 0 or cut % 2:
            want = by_onnxruntime(model, x)
        else:
            # ONNX cuts as much on either side; ONNX Runtime begins at an earlier row here
            inside = np.ascontiguousarray(x[..., cut // 2 : length - cut // 2])
            want = by_onnxruntime(one_op(op, inside.shape, kernel_shape=[kernel], strides=[stride]), inside)
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_squeeze_of_a_dynamic_size_refuses_one() -> None:
    graph = import_onnx(one_op("Squeeze", ("n", 1, 3)))
    assert interpret(graph, [f32(2, 1, 3)])[0].shape == (2, 3)
    with pytest.raises(InputError, match=r"n in \[2"):
        interpret(graph, [f32(1, 1, 3)])
    fixed = import_onnx(one_op("Squeeze", ("n", 1, 3)), dynamic={"n": 1})
    assert interpret(fixed, [f32(1, 1, 3)])[0].shape == (3,)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="floats have fmod=1 only")
@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_of_special_floats(fmod: int) -> None:
    values = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 6.0, -6.0, np.inf, -np.inf, np.nan, 1e-30], np.float32)
    a, b = np.repeat(values, values.size), np.tile(values, values.size)
    (got,) = interpret(import_onnx(one_op("Mod", a.shape, b.shape, opset=28, fmod=fmod)), [a, b])
    with np.errstate(all="ignore"):
        want = np.fmod(a, b) if fmod else np.mod(a, b)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("by_scales", [False, True])
def test_a_region_is_resized(mode: str, by_scales: bool) -> None:
    x = f32(1, 2, 6, 8)
    roi = np.array([0, 0, 0.25, -0.2, 1, 1, 0.9, 1.1], np.float32)
    amounts = np.array([1, 1, 2, 0.5], np.float32) if by_scales else np.array([1, 2, 5, 9])
    names = ["x0", "roi", "amounts"] if by_scales else ["x0", "roi", "", "amounts"]
    node = helper.make_node(
        "Resize", names, ["y"],
        mode=mode, coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=9.0,
    )  # fmt: skip
    fixed = [onnx.numpy_helper.from_array(roi, "roi"), onnx.numpy_helper.from_array(amounts, "amounts")]
    info = helper.make_tensor_value_info("x0", TensorProto.FLOAT, x.shape)
    graph = helper.make_graph([node], "g", [info], [helper.make_empty_tensor_value_info("y")], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    (got,) = interpret(import_onnx(model), [x])
    if by_scales:
        # of the region's size, as ONNX says; ONNX Runtime takes the whole's
        assert got.shape == (1, 2, 7, 5)
    else:
        np.testing.assert_allclose(got, by_onnxruntime(model, x), rtol=1e-4, atol=1e-5)


def test_determinants() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 5)).astype(np.float32)
    x[1, 2] = x[1, 0]
    model = one_op("Det", ("b", "n", "n"))
    (got,) = interpret(import_onnx(model), [x])
    np.testing.assert_allclose(got, by_onnxruntime(model, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("SpaceToDepth", [(1, 4, 4, 2), (1, 4, 0, 2), (0, 4, 2, 2), (1, 4, 3, 2)], {"blocksize": 2}),
        ("DFT", [(1, 4, 1), (1, 0, 1), (0, 3, 1)], {"axis": 1, "opset": 17}),
    ],
)
def test_axes_that_may_be_0(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    """An error where ONNX Runtime has one, or else its result: whether bounds or calls say that a size is 0."""
    model = one_op(op, tuple("abcd"[: len(shapes[0]) - (op == "DFT")]) + ((1,) if op == "DFT" else ()), **attributes)
    for dynamic in (None, {"b": (0, None), "c": (0, None)} if op == "SpaceToDepth" else {"b": (0, None)}):
        compiled = ingot.compile(model, dynamic=dynamic, threads=1, cache=False)
        for x in (f32(*shape) for shape in shapes):
            try:
                want = by_onnxruntime(model, x)
            except Exception:
                with pytest.raises(InputError):
                    compiled(x)
            else:
                np.testing.assert_allclose(compiled(x), want, rtol=1e-4, atol=1e-5)
