"""Integer inputs that say sizes: one graph for all their values, as ONNX Runtime computes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import ingot
from ingot.driver.specialize import ValueSpecialization
from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.support.errors import InputError, UnsupportedOpError
from tests.frontends.onnx.reference import B, F, I, X, assert_close, model, one, runtime

X46 = ("x", F, [4, 6])
END = 2**63 - 1
CASES = {
    "reshape": (one("Reshape", "x", "s"), [X46, ("s", I, [3])], [(2, 3, 4), (0, -1, 2), (-1, 1, 1), (24, 1, 1)]),
    "reshape beside a size": (
        one("Reshape", "x", "s"), [("x", F, ["n", 6]), ("s", I, [2])], [(8, 3), (-1, 2), (0, -1), (1, 24)],
    ),
    "expand": (one("Expand", "x", "s"), [("x", F, [4, 1, 6]), ("s", I, [3])], [(4, 5, 6), (1, 1, 1), (4, 0, 1)]),
    "expand ranks": (one("Expand", "x", "s"), [X46, ("s", I, [4])], [(2, 3, 4, 6), (1, 1, 1, 1)]),
    "slice": (
        one("Slice", "x", "a", "b", "axes"), [X46, ("a", I, [2]), ("b", I, [2])],
        [((1, 2), (3, 5)), ((-3, -9), (END, -1)), ((3, 4), (1, 100)), ((0, 0), (END, END))],
    ),
    "slice back": (
        one("Slice", "x", "a", "b", "one", "back"), [X46, ("a", I, [1]), ("b", I, [1])],
        [((5,), (0,)), ((-1,), (-9,)), ((END,), (-END,)), ((2,), (4,))],
    ),
    "split": (
        [helper.make_node("Split", ["x", "s"], ["z", "y"], axis=1)], [X46, ("s", I, [2])], [(2, 4), (0, 6), (5, 1)],
    ),
    "pad": (one("Pad", "x", "s"), [X46, ("s", I, [4])], [(1, 2, 3, 0), (0, 0, 0, 0), (-1, 2, 1, -3)]),
    "pad edge": (one("Pad", "x", "s", mode="edge"), [X46, ("s", I, [4])], [(1, 2, 3, 0), (0, 0, 0, 0)]),
    "tile": (one("Tile", "x", "s"), [X46, ("s", I, [2])], [(2, 3), (1, 1), (0, 2)]),
    "full": (one("ConstantOfShape", "s"), [("s", I, [3])], [(2, 3, 4), (0, 1, 5)]),
    "range": (one("Range", "zero", "s", "three"), [("s", I, [])], [(7,), (0,), (-3,)]),
    "top k": ([helper.make_node("TopK", ["x", "s"], ["z", "y"])], [X46, ("s", I, [1])], [(3,), (6,), (1,)]),
    "one hot": (one("OneHot", "t", "s", "values"), [("s", I, [])], [(3,), (9,)]),
    "triangle": (one("Trilu", "x", "s"), [X46, ("s", I, [])], [(0,), (-2,), (9,), (-9,)]),
    "resize": (one("Resize", "x", "", "", "s", mode="linear"), [X46, ("s", I, [2])], [(8, 3), (4, 6), (1, 13)]),
    "crop or pad": (one("CenterCropPad", "x", "s"), [X46, ("s", I, [2])], [(2, 9), (4, 6), (7, 1), (1, 3)]),
    "computed": (
        [helper.make_node("Shape", ["x"], ["n"]), helper.make_node("Mul", ["n", "s"], ["m"]),
         helper.make_node("Concat", ["m", "one"], ["k"], axis=0), *one("Expand", "y", "k")],
        [X46, ("s", I, [2]), ("y", F, [])], [(2, 3), (0, 1)],
    ),
}  # fmt: skip
KNOWN = [
    ("axes", np.array([0, 1])), ("one", np.array([1])), ("back", np.array([-2])), ("zero", np.int64(0)),
    ("three", np.int64(3)), ("t", np.array([0, 2, 5])), ("values", np.array([0, 1])),
]  # fmt: skip
TYPES = {"top k": (("z", F), ("y", I)), "split": (("z", F), ("y", F)), "range": (("z", I),), "one hot": (("z", I),)}


def feeds(inputs, told_numbers) -> dict[str, np.ndarray]:
    """X (or as many of its elements) and the numbers told, one tuple of them for each input or one for the only one."""
    groups = told_numbers if isinstance(told_numbers[0], tuple) else (told_numbers,)
    numbers = iter(groups)
    feed: dict[str, np.ndarray] = {}
    for name, kind, shape in inputs:
        shape = tuple(4 if d == "n" else d for d in shape)
        if kind == F:
            feed[name] = X.reshape(-1)[: int(np.prod(shape))].reshape(shape)
        else:
            feed[name] = np.array(next(numbers), np.int64).reshape(shape)
    return feed


@pytest.mark.parametrize("case", CASES)
def test_a_mere_size_is_read_from_the_data(case: str) -> None:
    nodes, inputs, values = CASES[case]
    m = model(nodes, inputs, TYPES.get(case, (("z", F),)), KNOWN)
    graph = import_onnx(m)
    for elements in values:
        arrays = feeds(inputs, elements)
        assert_close(interpret(graph, arrays), runtime(m, **arrays))


@pytest.mark.parametrize("case", ["reshape beside a size", "slice", "pad", "crop or pad"])
def test_and_compiled(case: str) -> None:
    nodes, inputs, values = CASES[case]
    m = model(nodes, inputs, TYPES.get(case, (("z", F),)), KNOWN)
    compiled = ingot.compile(m, cache=False, threads=1)
    assert isinstance(compiled, ingot.CompiledModel)
    for elements in values:
        arrays = feeds(inputs, elements)
        assert_close([compiled(**arrays)], runtime(m, **arrays))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "numbers"),
    [("expand", (3, 1, 1)), ("reshape", (5, 5, 1)), ("split", (2, 3)), ("reshape", (-2, 3, 4)), ("top k", (7,)),
     ("tile", (-1, 1)), ("full", (1, -2, 1))],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(case: str, numbers) -> None:
    nodes, inputs, _ = CASES[case]
    compiled = ingot.compile(model(nodes, inputs, TYPES.get(case, (("z", F),)), KNOWN), cache=False, threads=1)
    with pytest.raises(InputError, match=r"element \d of input"):
        compiled(**feeds(inputs, numbers))


def test_axes_and_ranks_make_a_program_for_each_value() -> None:
    m = model(one("ReduceSum", "x", "axes", keepdims=0), [X46, ("axes", I, ["k"])])
    compiled = ingot.compile(m, cache=False, threads=1)
    assert not compiled.is_one_program
    for axes in ([0], [1], [-1, 0], [0], []):
        assert_close([compiled(X, np.array(axes, np.int64))], runtime(m, x=X, axes=np.array(axes, np.int64)))
    programs = compiled._executable
    assert isinstance(programs, ValueSpecialization) and len(programs._programs) == 4
    with pytest.raises(InputError, match="weights="):
        compiled.save("m.ingot")
    with pytest.raises(InputError, match="none for axes"):
        compiled(X)
    assert compiled.for_inputs(X, np.array([0])).inputs[0].name == "x"


def test_values_are_given_ahead() -> None:
    m = model(one("Unsqueeze", "x", "axes"), [X46, ("axes", I, [1])])
    compiled = ingot.compile(m, weights={"axes": np.array([1])}, cache=False, threads=1)
    assert [spec.name for spec in compiled.inputs] == ["x"]
    assert compiled(X).shape == (4, 1, 6)
    with pytest.raises(InputError, match="wrong dtype"):
        ingot.compile(m, constants={"axes": np.array([1.0])}, cache=False)


def test_a_branch_that_decides_the_rank_makes_a_program_for_each_value() -> None:
    def branch(name: str, op: str, **attributes) -> onnx.GraphProto:
        info = helper.make_tensor_value_info(name, F, None)
        return helper.make_graph([helper.make_node(op, ["x"], [name], **attributes)], name, [], [info])

    nodes = [helper.make_node("If", ["flag"], ["z"], then_branch=branch("a", "Flatten", axis=0),
                              else_branch=branch("b", "Identity"))]  # fmt: skip
    m = model(nodes, [X46, ("flag", B, [])])
    compiled = ingot.compile(m, cache=False, threads=1)
    for flag in (True, False):
        assert_close([compiled(X, np.array(flag))], runtime(m, x=X, flag=np.array(flag)))


def test_large_data_is_not_asked_for() -> None:
    m = model(one("Expand", "y", "s"), [("s", I, ["n", "n"]), ("y", F, [])])
    with pytest.raises(UnsupportedOpError):
        ingot.compile(m, cache=False)
