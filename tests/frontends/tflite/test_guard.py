"""TFLite's operators under guard pages: open sizes that are 0, 1, odd or do not match, and numbers from both ends of
their types. An error of Ingot's, or the answer of LiteRT's reference kernels; never a stray access.

LiteRT checks fewer sizes than it reads by, so it answers in a process of its own, and numbers out of range are compared
with the interpreter alone.
"""

from __future__ import annotations

import faulthandler
import os
import resource
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.frontends.tflite import import_tflite
from ingot.ir.interp import interpret
from ingot.support.errors import IngotError
from tests.frontends.tflite.builder import feed, one_op, reference
from tests.guard import ENDS, End, check_all

I32, F32, BOOL, I8 = np.int32, np.float32, np.bool_, np.int8
Open = tuple[Any, ...]  # sizes, letters for open ones; a type other than F32 before them
_W = partial(feed, seed=9)
SIZES = ({"a": 5, "b": 7}, {"a": 1, "b": 1}, {"a": 13, "b": 2}, {"a": 0, "b": 5}, {"a": 5, "b": 0}, {"a": 0, "b": 0})
OTHER_SIZES = (0, 1, 4, 6, 17)  # of one operand alone, where the others have 5 and 7


def i32(*values: int) -> np.ndarray:
    return np.array(values, I32)


def _n(value: Any, dtype: Any = I32) -> np.ndarray:
    return np.array(value, dtype)


AB, A3, IA = ("a", "b"), ("a", 3), (I32, "a")
IMAGE = (2, "a", "b", 3)
SAME, VALID, S21 = {"padding": 0}, {"padding": 1}, {"stride_w": 2, "stride_h": 1}
POOL = {"filter_width": 3, "filter_height": 2}
# operands, options, their values; an array is a constant
CASES: dict[str, tuple[str, list[Open | np.ndarray | None], str, dict[str, Any]]] = {
    **{name: (name, [AB, AB], "", {}) for name in ("MAXIMUM", "SQUARED_DIFFERENCE", "FLOOR_MOD", "POW", "LESS")},
    "ADD of a row": ("ADD", [AB, ("b",)], "Add", {"activation": 1}),
    "FLOOR_DIV of integers": ("FLOOR_DIV", [(I32, "a", "b"), (I32, "b")], "", {}),
    "ADD_N": ("ADD_N", [AB, AB, AB], "", {}),
    "SELECT_V2": ("SELECT_V2", [(BOOL, "a", 1), AB, ("b",)], "", {}),
    "SELECT of rows": ("SELECT", [(BOOL, "a"), AB, AB], "", {}),
    "PRELU": ("PRELU", [(2, "a", "b", 3), ("b", 3)], "", {}),
    "RIGHT_SHIFT": ("RIGHT_SHIFT", [(I32, "a"), (I32, "a")], "", {}),
    "SOFTMAX": ("SOFTMAX", [AB], "Softmax", {"beta": 0.5}),
    "LOG_SOFTMAX": ("LOG_SOFTMAX", [AB], "", {}),
    "L2_NORMALIZATION": ("L2_NORMALIZATION", [AB], "L2Norm", {"activation": 0}),
    "LOCAL_RESPONSE_NORMALIZATION": ("LOCAL_RESPONSE_NORMALIZATION", [(1, 2, "a", "b")], "LocalResponseNormalization",
                                     {"radius": 3, "bias": 1.0, "alpha": 0.0, "beta": 0.7}),
    "CUMSUM": ("CUMSUM", [AB, _n(1)], "Cumsum", {"exclusive": True, "reverse": True}),
    "BUCKETIZE": ("BUCKETIZE", [AB], "Bucketize", {"boundaries": np.array([-1, 0, 1], F32)}),
    **{f"{name} of rows": (name, [AB, i32(0)], "Reducer", {"keep_dims": False})
       for name in ("SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN")},
    "REDUCE_ALL": ("REDUCE_ALL", [(BOOL, "a", "b"), i32(1)], "Reducer", {"keep_dims": True}),
    "ARG_MAX": ("ARG_MAX", [AB, _n(1)], "ArgMax", {"output_type": 2}),
    "ARG_MIN of rows": ("ARG_MIN", [AB, _n(0)], "ArgMin", {"output_type": 2}),
    "TOPK_V2": ("TOPK_V2", [AB, _n(3)], "", {}),
    "TOPK_V2 of as many as asked": ("TOPK_V2", [AB, (I32,)], "", {}),
    # elements by index
    "GATHER": ("GATHER", [A3, (I32, 4)], "Gather", {"axis": 0}),
    "GATHER of columns": ("GATHER", [AB, (I32, "c")], "Gather", {"axis": 1}),
    "GATHER in batches": ("GATHER", [AB, (I32, "a", 2)], "Gather", {"axis": 1, "batch_dims": 1}),
    "GATHER_ND": ("GATHER_ND", [AB, (I32, "c", 2)], "", {}),
    "SCATTER_ND": ("SCATTER_ND", [(I32, "a", 1), A3, i32(4, 3)], "", {}),
    "SCATTER_ND to a size asked for": ("SCATTER_ND", [(I32, "a", 1), ("a",), (I32, 1)], "", {}),
    "ONE_HOT": ("ONE_HOT", [IA, _n(4), _n(2, F32), _n(-1, F32)], "OneHot", {"axis": -1}),
    "ONE_HOT of a depth asked for": ("ONE_HOT", [IA, (I32,), _n(2, F32), _n(-1, F32)], "OneHot", {"axis": 0}),
    "REVERSE_SEQUENCE": ("REVERSE_SEQUENCE", [("a", "b", 2), IA], "ReverseSequence", {"seq_dim": 1, "batch_dim": 0}),
    "MATRIX_SET_DIAG": ("MATRIX_SET_DIAG", [("a", "a"), ("a",)], "", {}),
    "SPARSE_TO_DENSE": ("SPARSE_TO_DENSE", [(I32, "a", 2), i32(3, 4), ("a",), _n(0.5, F32)], "SparseToDense", {}),
    "UNSORTED_SEGMENT_SUM": ("UNSORTED_SEGMENT_SUM", [A3, IA, _n(4)], "", {}),
    "UNSORTED_SEGMENT_MAX": ("UNSORTED_SEGMENT_MAX", [A3, IA, _n(4)], "", {}),
    "DYNAMIC_UPDATE_SLICE": ("DYNAMIC_UPDATE_SLICE", [AB, ("c", 2), (I32, 2)], "", {}),
    "EMBEDDING_LOOKUP": ("EMBEDDING_LOOKUP", [IA, ("b", 3)], "", {}),
    "HASHTABLE_LOOKUP": ("HASHTABLE_LOOKUP", [(I32, 3), np.arange(5, dtype=I32), A3], "", {}),
    "EMBEDDING_LOOKUP_SPARSE": ("EMBEDDING_LOOKUP_SPARSE", [IA, _n([[0, 0], [2, 0]]), i32(3, 1), ("a",), ("b", 2)],
                                "EmbeddingLookupSparse", {"combiner": 1}),
    # shapes
    "RESHAPE": ("RESHAPE", [AB, i32(-1, 2)], "", {}),
    "RESHAPE as asked": ("RESHAPE", [AB, (I32, 2)], "", {}),
    "SLICE": ("SLICE", [AB, i32(1, 2), i32(2, -1)], "", {}),
    "SLICE from where it is asked": ("SLICE", [AB, (I32, 2), i32(1, 2)], "", {}),
    "STRIDED_SLICE": ("STRIDED_SLICE", [AB, i32(1, -1), i32(-1, -9), i32(2, -2)], "StridedSlice", {}),
    "STRIDED_SLICE of one": ("STRIDED_SLICE", [AB, i32(-1, 0), i32(0, 9), i32(1, 1)], "StridedSlice",
                             {"shrink_axis_mask": 1}),
    "STRIDED_SLICE as asked": ("STRIDED_SLICE", [AB, (I32, 2), (I32, 2), i32(1, 1)], "StridedSlice", {}),
    "SPLIT_V": ("SPLIT_V", [AB, i32(1, -1), _n(1)], "SplitV", {"num_splits": 2}),
    "CONCATENATION": ("CONCATENATION", [AB, ("a", "c")], "Concatenation", {"axis": -1}),
    "PACK": ("PACK", [AB, AB], "Pack", {"values_count": 2, "axis": 1}),
    "PAD": ("PAD", [AB, _n([[1, 0], [2, 1]])], "", {}),
    "PAD as asked": ("PADV2", [AB, (I32, 2, 2), _n(7, F32)], "", {}),
    "MIRROR_PAD that reflects": ("MIRROR_PAD", [AB, _n([[1, 2], [0, 1]])], "MirrorPad", {"mode": 0}),
    "MIRROR_PAD that repeats": ("MIRROR_PAD", [AB, _n([[1, 2], [0, 1]])], "MirrorPad", {"mode": 1}),
    "TILE as asked": ("TILE", [AB, (I32, 2)], "", {}),
    "BROADCAST_TO": ("BROADCAST_TO", [("a", 1), (I32, 2)], "", {}),
    "FILL as asked": ("FILL", [(I32, 2), _n(2.5, F32)], "", {}),
    "RANGE": ("RANGE", [(I32,), (I32,), (I32,)], "", {}),
    "REVERSE_V2": ("REVERSE_V2", [AB, i32(0)], "", {}),
    "SPACE_TO_DEPTH": ("SPACE_TO_DEPTH", [IMAGE], "SpaceToDepth", {"block_size": 2}),
    "DEPTH_TO_SPACE": ("DEPTH_TO_SPACE", [(1, "a", "b", 8)], "DepthToSpace", {"block_size": 2}),
    "SPACE_TO_BATCH_ND": ("SPACE_TO_BATCH_ND", [IMAGE, i32(2, 3), _n([[1, 0], [0, 1]])], "", {}),
    "BATCH_TO_SPACE_ND": ("BATCH_TO_SPACE_ND", [("a", 2, "b", 2), i32(2, 3), _n([[1, 0], [0, 1]])], "", {}),
    "WHERE": ("WHERE", [(BOOL, "a", "b")], "", {}),
    "UNIQUE": ("UNIQUE", [IA], "Unique", {}),
    # windows and products
    **{f"CONV_2D {n}": ("CONV_2D", [IMAGE, _W((4, 3, 2, 3)), _W((4,))], "Conv2D", p | S21)
       for n, p in (("same", SAME), ("valid", VALID))},
    "CONV_2D dilated": ("CONV_2D", [IMAGE, _W((4, 3, 2, 3)), None], "Conv2D",
                        SAME | {"stride_w": 1, "stride_h": 1, "dilation_h": 3, "dilation_w": 2}),
    "CONV_2D of channels that differ": ("CONV_2D", [(1, 5, 6, "a"), ("b", 3, 2, "a"), ("b",)], "Conv2D", SAME | S21),
    "DEPTHWISE_CONV_2D": ("DEPTHWISE_CONV_2D", [IMAGE, _W((1, 3, 3, 6)), _W((6,))], "DepthwiseConv2D",
                          VALID | S21 | {"depth_multiplier": 2}),
    **{name: (name, [IMAGE], "Pool2D", VALID | S21 | POOL) for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D")},
    "MAX_POOL_2D same": ("MAX_POOL_2D", [IMAGE], "Pool2D", SAME | S21 | POOL),
    "RESIZE_BILINEAR": ("RESIZE_BILINEAR", [IMAGE, i32(7, 9)], "ResizeBilinear", {"half_pixel_centers": True}),
    "RESIZE_BILINEAR as asked": ("RESIZE_BILINEAR", [IMAGE, (I32, 2)], "ResizeBilinear", {}),
    "RESIZE_NEAREST_NEIGHBOR": ("RESIZE_NEAREST_NEIGHBOR", [IMAGE, i32(3, 2)], "ResizeNearestNeighbor", {}),
    "FULLY_CONNECTED": ("FULLY_CONNECTED", [("a", 2, "b"), ("c", "b"), ("c",)], "FullyConnected", {"activation": 1}),
    "BATCH_MATMUL": ("BATCH_MATMUL", [(2, "a", "b"), (2, "b", "c")], "BatchMatMul", {}),
    "BATCH_MATMUL transposed": ("BATCH_MATMUL", [("a", 2, "b"), ("a", 3, "b")], "BatchMatMul", {"adj_y": True}),
    # levels of 8 bits
    **{f"{name} of levels": (name, [(I8, *IMAGE)], "Pool2D", SAME | S21 | POOL)
       for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D")},
    "ADD of levels": ("ADD", [(I8, *AB), (I8, "b")], "Add", {"activation": 1}),
    "GATHER of levels": ("GATHER", [(I8, *A3), (I32, 4)], "Gather", {"axis": 0}),
    "CONCATENATION of levels": ("CONCATENATION", [(I8, *AB), (I8, "c", "b")], "Concatenation", {"axis": 0}),
}  # fmt: skip
# refused: sizes that only some calls divide, a shape that is an input, filters of open size
_REFUSED = {
    "RESHAPE", "RESHAPE as asked", "SPACE_TO_DEPTH", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND",
    "CONV_2D of channels that differ", "FULLY_CONNECTED",
}  # fmt: skip
# of nothing, TensorFlow's infinity, not the largest number; of one element, a shape by broadcasting
_OTHERWISE = {"REDUCE_MAX of rows": 0, "REDUCE_MIN of rows": 0, "SELECT_V2": 1, "SELECT of rows": 1}
_MEMORY = 3 << 30  # bytes that a process may take for calls: what asks for more is an error
_BOOLS = ("LESS", "REDUCE_ALL")
_INTS = {"ARG_MAX": I32, "ARG_MIN": I32, "BUCKETIZE": I32, "RANGE": I32, "WHERE": np.int64, "FLOOR_DIV": I32,
         "RIGHT_SHIFT": I32}  # fmt: skip
_PAIRS = {"TOPK_V2": (F32, I32), "HASHTABLE_LOOKUP": (F32, np.uint8), "UNIQUE": (I32, I32), "SPLIT_V": (F32, F32)}
LEVELS = (0.05, 3)
Call = tuple[list[np.ndarray], bool, bool]  # the inputs, whether all sizes match, whether every number is in range


def _parts(operand: Open) -> tuple[Any, tuple[Any, ...]]:
    return (operand[0], operand[1:]) if operand and isinstance(operand[0], type) else (F32, operand)


@cache
def _model(name: str) -> bytes:
    op, operands, options, values = CASES[name]
    entries: list[Any] = []
    for operand in operands:
        if operand is None or isinstance(operand, np.ndarray):
            entries.append(operand)
            continue
        dtype, sizes = _parts(operand)
        shape = tuple(-1 if isinstance(n, str) else n for n in sizes)
        entries.append((shape, dtype, LEVELS) if dtype is I8 else (shape, dtype))
    is_quantized = any(isinstance(o, tuple) and _parts(o)[0] is I8 for o in operands)
    kinds = _PAIRS.get(op) or (BOOL if op in _BOOLS else I8 if is_quantized else _INTS.get(op, F32),)
    results = [((1,), kind, LEVELS) if kind is I8 else ((1,), kind) for kind in kinds]
    return one_op(op, entries, results, options, **values)


def _inputs(name: str) -> list[tuple[Any, tuple[Any, ...]]]:
    return [_parts(o) for o in CASES[name][1] if isinstance(o, tuple)]


def _values(dtype: Any, shape: tuple[int, ...], seed: int, top: int) -> np.ndarray:
    """Random values; integers from 0 up to `top`."""
    return np.random.default_rng(seed).integers(0, top, shape).astype(I32) if dtype is I32 else feed(shape, dtype, seed)


def _calls(name: str) -> Iterator[Call]:
    """Sizes that match, sizes of one operand that do not, and numbers that no index, size or count is."""
    inputs = _inputs(name)
    everyone = [dict(sizes, c=3) for sizes in SIZES]
    chosen = [[sizes] * len(inputs) for sizes in everyone]
    for at, (_, dims) in enumerate(inputs):
        for letter in sorted({d for d in dims if isinstance(d, str)}) if len(inputs) > 1 else ():
            chosen += [[{**everyone[0], letter: n} if i == at else everyone[0] for i in range(len(inputs))]
                       for n in OTHER_SIZES]  # fmt: skip
    for number, of_inputs in enumerate(chosen):
        shapes = [
            tuple(sizes[d] if isinstance(d, str) else d for d in dims)
            for (_, dims), sizes in zip(inputs, of_inputs, strict=True)
        ]
        top = max(1, min((n for shape in shapes for n in shape), default=3))
        arrays = [_values(kind, s, i, top) for i, ((kind, _), s) in enumerate(zip(inputs, shapes, strict=True))]
        yield arrays, number < len(SIZES), True
        if number or not any(kind is I32 for kind, _ in inputs):
            continue
        for extreme in (-1, -7, 5, 100, 1 << 30, (1 << 31) - 1, -(1 << 31)):
            arrays = [_values(kind, s, i, 3) for i, ((kind, _), s) in enumerate(zip(inputs, shapes, strict=True))]
            for x in arrays:
                if x.dtype == I32 and x.size:
                    x.reshape(-1)[-1] = extreme
            yield arrays, True, False


def _answers(name: str, folder: Path) -> dict[int, list[np.ndarray]]:
    """LiteRT's results by the number of the call, without those for which it has an error or ends its process."""
    calls = [arrays for arrays, _, is_in_range in _calls(name) if is_in_range]
    first = 0
    while first < len(calls):
        child = os.fork()
        if not child:
            _answer_all(name, calls, first, folder)
        os.waitpid(child, 0)
        first = 1 + max((int(p.stem) for p in folder.glob("*.begun")), default=len(calls))
    return {int(p.stem): [*np.load(p).values()] for p in folder.glob("*.npz")}


def _answer_all(name: str, calls: Sequence[list[np.ndarray]], first: int, folder: Path) -> None:
    """In the child, which ends here: a file for each answer."""
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for number in range(first, len(calls)):
        (folder / f"{number}.begun").touch()
        try:
            np.savez(folder / f"{number}.npz", *reference(_model(name), calls[number]))
        except (RuntimeError, ValueError):
            continue
    os._exit(0)


def _limit_memory() -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY, hard))


def _check(name: str, answers: dict[int, list[np.ndarray]], folder: Path) -> None:
    path, limits = folder / "model.tflite", ingot.Limits(seconds=30, sizes=1 << 12)
    path.write_bytes(_model(name))
    try:
        compiled = ingot.compile(path, threads=1, cache=False, limits=limits)
    except IngotError as error:
        assert not answers or name in _REFUSED, error
        return
    _limit_memory()
    graph = import_tflite(_model(name)).graph if compiled.is_one_program else None
    for number, (arrays, has_equal_sizes, is_in_range) in enumerate(sorted(_calls(name), key=lambda call: not call[2])):
        want, where = answers.get(number), [x.shape for x in arrays]
        try:
            results = compiled(*arrays)
        except IngotError as error:
            assert want is None or not has_equal_sizes or any(x.size == 0 for x in arrays), (where, error)
            continue
        got = results if isinstance(results, tuple) else (results,)
        if (want is None and is_in_range) or any(x.size == _OTHERWISE.get(name) for x in arrays):
            continue
        if want is None and graph is not None:
            want = interpret(graph, arrays)
        for g, w in zip(got, want or (), strict=want is not None):
            assert np.shape(g) == np.shape(w), (where, np.shape(g), np.shape(w))
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1 if w.dtype == I8 else 1e-5, err_msg=f"{where}")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("end", ENDS)
def test_sizes_and_numbers_of_all_kinds(end: End, tmp_path_factory: pytest.TempPathFactory) -> None:
    folders = {name: tmp_path_factory.mktemp("tflite") for name in CASES}
    answers = {name: _answers(name, folder) for name, folder in folders.items()}
    check_all({name: partial(_check, name, answers[name], folders[name]) for name in CASES}, [end])
