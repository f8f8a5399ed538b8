"""Numbers of a graph at their extremes: an answer or an error of Ingot's, and no work that grows with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.support.errors import IngotError
from tests.frontends.tensorflow.fixtures import field, node

FLOAT, INT32 = 1, 3
FAR = (1 << 63) - 1
KIND, INDEX = field(6, FLOAT), field(6, INT32)


def _shape(*sizes: int) -> bytes:
    return field(7, b"".join(field(2, field(1, n)) for n in sizes))


def _constant(name: str, *numbers: int) -> bytes:
    content = b"".join(int(n).to_bytes(4, "little", signed=True) for n in numbers)
    value = field(1, INT32) + field(2, field(2, field(1, len(numbers)))) + field(4, content)
    return node(name, "Const", (), {"dtype": INDEX, "value": field(8, value)})


def _integer(value: int) -> bytes:
    """An attribute: a varint of up to ten bytes."""
    value &= (1 << 64) - 1
    content = bytearray((3 << 3,))
    while value >= 128:
        content.append(value & 127 | 128)
        value >>= 7
    return bytes((*content, value))


X = node("x", "Placeholder", (), {"dtype": KIND, "shape": _shape(3, 4)})
# a node of x[3, 4] and numbers, and the attribute that takes an extreme
ATTRIBUTES = {
    "seq_dim": ("ReverseSequence", ("x", "three"), {"T": KIND, "Tlen": INDEX, "batch_dim": _integer(0)}),
    "batch_dim": ("ReverseSequence", ("x", "three"), {"T": KIND, "Tlen": INDEX, "seq_dim": _integer(1)}),
    "ellipsis_mask": ("StridedSlice", ("x", "one", "one", "one"), {"T": KIND, "Index": INDEX}),
    "shrink_axis_mask": ("StridedSlice", ("x", "one", "one", "one"), {"T": KIND, "Index": INDEX}),
    "axis": ("Pack", ("x", "x"), {"T": KIND, "N": _integer(2)}),
    "N": ("ConcatV2", ("x", "x", "first"), {"T": KIND, "Tidx": INDEX}),
    "num_split": ("Split", ("first", "x"), {"T": KIND}),
    "batch_dims": ("GatherV2", ("x", "one", "first"), {"Tparams": KIND, "Tindices": INDEX, "Taxis": INDEX}),
    "num": ("Unpack", ("x",), {"T": KIND, "axis": _integer(0)}),
}
# and one whose last operand does
OPERANDS = {
    "Reshape": {"T": KIND}, "Tile": {"T": KIND}, "BroadcastTo": {"T": KIND}, "Pad": {"T": KIND}, "Sum": {"T": KIND},
    "Roll": {"T": KIND}, "OneHot": {"T": KIND},
}  # fmt: skip


def _called(path: Path, *nodes: bytes) -> None:
    """Compiles and calls; what is refused says why."""
    path.write_bytes(b"".join(nodes))
    try:
        ingot.compile(path, outputs=["y"], threads=1, cache=False, limits=ingot.Limits(seconds=10))(
            np.ones((3, 4), np.float32)
        )
    except IngotError as e:
        assert "report" not in str(e)


@pytest.mark.parametrize("number", [-1 << 63, -1, 7, 1 << 31, FAR])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_extreme_attribute(name: str, number: int, tmp_path: Path) -> None:
    op, inputs, attributes = ATTRIBUTES[name]
    constants = (_constant("three", 1, 2, 3), _constant("one", 1), _constant("first", 0))
    _called(tmp_path / "graph.pb", X, *constants, node("y", op, inputs, attributes | {name: _integer(number)}))


@pytest.mark.parametrize("number", [-1 << 31, -2, 1 << 16, (1 << 31) - 1])
@pytest.mark.parametrize("name", OPERANDS)
def test_an_extreme_operand(name: str, number: int, tmp_path: Path) -> None:
    attributes = OPERANDS[name] | dict.fromkeys(("Tshape", "Tmultiples", "Tidx", "Tpaddings", "Taxis"), INDEX)
    count = 4 if name == "Pad" else 2
    numbers = _constant("numbers", *([number] * count))
    shape = node("places", "Reshape", ("numbers", "square"), {"T": INDEX})
    inputs = ("x", "places" if name == "Pad" else "numbers", *(("numbers",) if name == "Roll" else ()))
    _called(tmp_path / "graph.pb", X, numbers, _constant("square", 2, 2), shape, node("y", name, inputs, attributes))
