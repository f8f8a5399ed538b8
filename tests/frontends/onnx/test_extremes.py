"""Numbers of a file at their extremes: a right result, or an error of Ingot's, in no more time than others."""

import resource
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ingot

FAR, MOST, LEAST = 1 << 62, (1 << 63) - 1, -(1 << 63)
X = np.arange(1, 26, dtype=np.float32).reshape(1, 1, 5, 5)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """What asks for memory by a number of the file does not get it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (6 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def model(op: str, x: np.ndarray, constants: Sequence[Any] = (), opset: int = 20, **attributes: Any) -> onnx.ModelProto:
    """A node of x and constants; None is left out."""
    names = ["" if c is None else f"c{i}" for i, c in enumerate(constants)]
    node = helper.make_node(op, ["x", *names], ["y"], **attributes)
    initializers = [numpy_helper.from_array(np.asarray(c), n) for c, n in zip(constants, names, strict=True) if n]
    x_info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph([node], "g", [x_info], [helper.make_empty_tensor_value_info("y")], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run(op: str, x: np.ndarray, constants: Sequence[Any] = (), **attributes: Any) -> np.ndarray:
    limits = ingot.Limits(seconds=10)
    return np.asarray(ingot.compile(model(op, x, constants, **attributes), cache=False, threads=1, limits=limits)(x))


def normalized(size: int) -> np.ndarray:
    x = X.astype(np.float64)
    return x / (1 + 1e-4 / size * x**2) ** 0.75


ANSWERS: dict[str, tuple[Callable[[], np.ndarray], np.ndarray]] = {
    "LRN: all channels, and padding": (lambda: run("LRN", X, size=FAR), normalized(FAR)),
    "MaxPool: the image, and padding": (
        lambda: run("MaxPool", X, kernel_shape=[1999, 3], pads=[999, 1, 999, 1]),
        np.broadcast_to(np.array([22, 23, 24, 25, 25], np.float32), (1, 1, 5, 5)),
    ),
    "Compress: a condition longer than the axis": (
        lambda: run("Compress", X[0, 0, :, :2], [np.array([False, True, True])], axis=-1),
        X[0, 0, :, 1:2],
    ),
    "Shrink: both sides fit": (
        lambda: run("Shrink", np.array([-2, 0, 2], np.float32), lambd=-1.0, bias=1.5),
        np.array([-0.5, 1.5, 0.5], np.float32),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer(name: str):
    got, want = ANSWERS[name][0](), ANSWERS[name][1]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5)


IMAGE = np.ones((1, 9, 4), np.float32)
LONG = np.ones((1, 1, 40000, 2), np.float32)
I64 = np.int64
REFUSALS: dict[str, tuple[str, Callable[[], object]]] = {
    "keepdims": ("expected 0 or 1", lambda: run("ReduceSum", X, keepdims=-1)),
    "ceil_mode": ("expected 0 or 1", lambda: run("MaxPool", X, kernel_shape=[2, 2], ceil_mode=FAR)),
    "strides": ("expected 1 or more", lambda: run("MaxPool", X, kernel_shape=[2, 2], strides=[0, 1])),
    "group": ("expected 1 or more", lambda: run("Conv", X, [np.ones((1, 1, 3, 3), np.float32)], group=0)),
    "pads of other rank": (
        "expected 4 numbers",
        lambda: run("Col2Im", IMAGE, [np.array([4, 4]), np.array([3, 3])], pads=[1]),
    ),
    "block of no size": ("sizes of 1 or more", lambda: run("Col2Im", IMAGE, [np.array([4, 4]), np.array([0, 3])])),
    "elements": ("too large", lambda: run("Expand", X, [np.array([FAR, 1, 5, 5])])),
    "a size of Resize": ("expected 0 or more", lambda: run("Resize", X, [None, None, np.array([-1, 1, 5, 5])])),
    "scales of an antialiased Resize": (
        "expected scales >= ",
        lambda: run("Resize", LONG, [None, None, np.array([1, 1, 1, 2])], mode="cubic", antialias=1),
    ),
    "scales": ("expected positive", lambda: run("Resize", X, [None, np.array([1, 1, np.inf, 1], np.float32)])),
    "an output of ConvTranspose": (
        "too large",
        lambda: run("ConvTranspose", X, [np.ones((1, 1, 3, 3), np.float32)], output_shape=[1 << 31, 1 << 31]),
    ),
    "the long output of a ConvTranspose": (
        "out of memory",
        lambda: run("ConvTranspose", X, [np.ones((1, 1, 3, 3), np.float32)], output_shape=[(1 << 31) - 9, 5]),
    ),
    "time_axis": ("expected 0 and 1", lambda: run("ReverseSequence", X[0, 0], [np.ones(5, I64)], time_axis=-1)),
    "parts of 0": ("expected 1 or more", lambda: run("SplitToSequence", X, [np.array(0)])),
    "a result without elements that numpy does not hold": (
        "out of memory",
        lambda: run("Reshape", X[..., :0], [np.array([FAR, 0, 5])], allowzero=1),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal(name: str):
    with pytest.raises(ingot.IngotError, match=REFUSALS[name][0]) as e:
        REFUSALS[name][1]()
    assert "report" not in str(e.value)


UNARY = {
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Neg": np.negative,
    "Abs": np.abs,
}


@pytest.mark.parametrize("op", UNARY)
def test_infinities_that_are_known(op: str):
    values = np.array([-np.inf, np.inf, np.nan, 0, -0.0, 1.5], np.float32)
    with np.errstate(all="ignore"):
        want = UNARY[op](values)
    compiled = ingot.compile(model(op, values), weights={"x": values}, cache=False, threads=1)
    np.testing.assert_array_equal(np.asarray(compiled()), want)


@pytest.mark.parametrize(("start", "limit"), [(0, np.inf), (-np.inf, 0), (0, np.nan)])
def test_a_range_without_end(start: float, limit: float):
    m = model("Range", np.asarray(start, np.float32), [np.float32(limit), np.float32(1)])
    with pytest.raises(ingot.IngotError, match="no end"):
        ingot.compile(m, weights={"x": np.float32(start)}, cache=False)


@pytest.mark.parametrize("size", [1 << 31, FAR, MOST])
@pytest.mark.parametrize("rank", [1, 3])
def test_sizes_that_a_call_brings(size: int, rank: int):
    node = helper.make_node("ConstantOfShape", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", onnx.TensorProto.INT64, [rank])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["a", "b", "c"][:rank])
    m = helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 20)], ir_version=9
    )
    compiled = ingot.compile(m, cache=False, threads=1)
    with pytest.raises(ingot.IngotError):
        compiled(np.full(rank, size))
    assert np.asarray(compiled(np.full(rank, 2))).shape == (2,) * rank
