"""Files: doors, names, sizes, weights in other forms, refusals, and what is no well-formed model."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.frontends.tflite import import_tflite
from ingot.frontends.tflite.flatbuffer import Reader, schema
from ingot.ir.interp import interpret
from ingot.support.errors import ImportModelError, IngotError, InputError, UnsupportedOpError
from tests.frontends.tflite.builder import Model, feed, interpreted, one_op, reference


def small() -> Model:
    """x[n, 6, 5, 3] -> a convolution of stride 2, flattened by its computed size, a layer."""
    model = Model()
    g = model.subgraph()
    x = g.input((-1, 6, 5, 3), name="image")
    w, b = g.const(feed((4, 3, 3, 3), seed=1)), g.const(feed((4,), seed=2))
    (y,) = g.op("CONV_2D", [x, w, b], [g.tensor((-1, 3, 3, 4))], "Conv2D", stride_w=2, stride_h=2, activation=3)
    (s,) = g.op("SHAPE", [y], [g.tensor((4,), np.int32)], "Shape", out_type=2)
    (n,) = g.op(
        "STRIDED_SLICE", [s, *(g.const(np.array([v], np.int32)) for v in (0, 1, 1))], [g.tensor((), np.int32)],
        "StridedSlice", shrink_axis_mask=1,
    )  # fmt: skip
    (shape,) = g.op("PACK", [n, g.const(np.array(36, np.int32))], [g.tensor((2,), np.int32)], "Pack", values_count=2)
    (flat,) = g.op("RESHAPE", [y, shape], [g.tensor((-1, 36))])
    result = g.tensor((-1, 2), name="logits")
    g.outputs = list(g.op("FULLY_CONNECTED", [flat, g.const(feed((2, 36), seed=3)), -1], [result], "FullyConnected"))
    return model


def test_a_file_compiles_for_all_sizes_and_agrees(tmp_path: Path):
    data = small().finish()
    path = tmp_path / "net"  # told by its content
    path.write_bytes(data)
    m = ingot.compile(path, cache=False)
    assert [s.name for s in m.inputs] == ["image"]
    assert m.outputs[0].name == "logits"
    for n in (1, 3):
        x = feed((n, 6, 5, 3), seed=n)
        np.testing.assert_allclose(m(x), reference(data, [x])[0], rtol=1e-5, atol=1e-5)


def test_sizes_are_named_fixed_and_bounded():
    data = small().finish()
    assert [str(n.type) for n in import_tflite(data, dynamic={"image_0": 2}).graph.inputs] == ["f32[2,6,5,3]"]
    assert import_tflite(data, dynamic={"image": {0: "batch"}}).graph.symbols() == ("batch",)
    assert import_tflite(data, dynamic={"image_0": (1, 8)}).graph.bounds == (("image_0", 1, 8),)
    with pytest.raises(InputError, match="image_0"):
        import_tflite(data, dynamic=False)
    with pytest.raises(InputError, match="names no symbol"):
        import_tflite(data, dynamic={"batch": 2})
    with pytest.raises(InputError, match="an input of"):
        import_tflite(data, dynamic={"x": {0: "batch"}})


def test_signatures_are_chosen_by_name(tmp_path: Path):
    model = Model()
    for name, op in (("double", "ADD"), ("square", "MUL")):
        g = model.subgraph()
        x = g.input((3,))
        g.outputs = list(g.op(op, [x, x], [g.tensor((3,))], op.capitalize()))
        model.signature(name, len(model.subgraphs) - 1, {"a": x}, {"b": g.outputs[0]})
    path = tmp_path / "two.tflite"
    path.write_bytes(model.finish())
    x = feed((3,))
    for name, want in ((None, x + x), ("double", x + x), ("square", x * x)):
        m = ingot.compile(path, signature=name, cache=False)
        assert (m.inputs[0].name, m.outputs[0].name) == ("a", "b")
        np.testing.assert_array_equal(m(a=x), want)
    with pytest.raises(InputError, match="'double', 'square'"):
        ingot.compile(path, signature="cube")


def test_weights_of_f16_are_widened():
    model = Model()
    g = model.subgraph()
    w = g.const(feed((4, 3)).astype(np.float16))
    (wide,) = g.op("DEQUANTIZE", [w], [g.tensor((4, 3))])
    x = g.input((2, 3))
    g.outputs = list(g.op("FULLY_CONNECTED", [x, wide, -1], [g.tensor((2, 4))], "FullyConnected"))
    x = feed((2, 3), seed=4)
    np.testing.assert_allclose(interpreted(model.finish(), [x])[0], reference(model.finish(), [x])[0], rtol=1e-6)


@pytest.mark.parametrize("block", [(), (0,), (0, 1)])
def test_sparse_weights_are_spelt_out(block: tuple[int, ...]):
    dense = feed((4, 8), seed=5)
    dense *= np.kron(np.array([[1, 0], [0, 1]]), np.ones((2, 4))).astype(np.float32)
    sizes = {(): {}, (0,): {0: 2}, (0, 1): {0: 2, 1: 4}}[block]
    outer = [4 // sizes.get(0, 1), 8 // sizes.get(1, 1)]
    grid = dense.reshape(outer[0], 4 // outer[0], outer[1], 8 // outer[1]).transpose(0, 2, 1, 3)
    starts, indices, values = [0], [], []
    for i in range(outer[0]):
        columns = [j for j in range(outer[1]) if grid[i, j].any()]
        indices += columns
        values += [grid[i, j] for j in columns]
        starts.append(len(indices))
    vector = {"table": "Int32Vector"}
    levels = [
        {"format": 0, "dense_size": outer[0]},
        {"format": 1, "array_segments_type": 1, "array_segments": vector | {"values": starts}, "array_indices_type": 1,
         "array_indices": vector | {"values": indices}},
        *({"format": 0, "dense_size": sizes[d]} for d in block),
    ]  # fmt: skip
    sparsity = {"traversal_order": list(range(2 + len(block))), "block_map": list(block), "dim_metadata": levels}
    model = Model()
    g = model.subgraph()
    w = g.tensor((4, 8), data=np.concatenate([v.reshape(-1) for v in values]).tobytes(), sparsity=sparsity)
    (wide,) = g.op("DENSIFY", [w], [g.tensor((4, 8))])
    x = g.input((2, 8))
    g.outputs = list(g.op("ADD", [g.op("TILE", [x, g.const(np.array([2, 1], np.int32))], [g.tensor((4, 8))])[0], wide],
                          [g.tensor((4, 8))], "Add"))  # fmt: skip
    x = feed((2, 8), seed=6)
    got = interpreted(model.finish(), [x])[0]
    np.testing.assert_array_equal(got, np.tile(x, (2, 1)) + dense)
    np.testing.assert_array_equal(got, reference(model.finish(), [x])[0])


def test_integers_of_4_bits_are_unpacked():
    levels = [-8, 7, 3, -1, 5]
    packed = bytes([(levels[0] & 15) | (levels[1] & 15) << 4, (levels[2] & 15) | (levels[3] & 15) << 4, levels[4] & 15])
    model = Model()
    g = model.subgraph()
    w = g.tensor((5,), "INT4", (0.5, 0), data=packed)
    g.outputs = list(g.op("DEQUANTIZE", [w], [g.tensor((5,))]))
    np.testing.assert_array_equal(interpreted(model.finish(), [])[0], np.array(levels, np.float32) / 2)


def test_what_there_is_no_row_for_is_refused_by_name_all_at_once():
    model = Model()
    g = model.subgraph()
    (y,) = g.op("CUSTOM", [g.input((3,))], [g.tensor((3,), name="first")], custom="FlexErf")
    (z,) = g.op("CUSTOM", [y], [g.tensor((3,))], custom="Mystery")
    (u,) = g.op("ADD", [z, z], [g.tensor((3,))], "Add")
    g.outputs = list(g.op("SKIP_GRAM", [u], [g.tensor((3,))]))
    with pytest.raises(UnsupportedOpError) as e:
        import_tflite(model.finish())
    assert [op.name for op in e.value.ops] == ["FlexErf", "Mystery", "SKIP_GRAM"]
    assert "first" in str(e.value)


# --- files that nobody vouches for


def test_truncated_and_damaged_files_are_refused():
    rng = random.Random(0)
    kernel = (feed((2, 3, 3, 2), np.int8), ([0.1, 0.2], [0, 0], 0))
    levels = one_op("CONV_2D", [((1, 4, 4, 2), np.int8, (0.1, 3)), kernel], [((1,), np.int8, (0.2, 1))], "Conv2D")
    files = [small().finish(), levels]
    for data in files:
        for n in range(0, len(data), 7):
            _survives(data[:n])
    for step in range(600):
        damaged = bytearray(files[step % 2])
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        _survives(bytes(damaged))


def _survives(data: bytes) -> None:
    try:
        graph = import_tflite(data).graph
    except IngotError:
        return
    graph.symbols()


def test_a_file_without_a_mark_is_no_model():
    for data in (b"", b"\0" * 4, b"\x1c\0\0\0TFL3", b"\xff\xff\xff\xffTFL3" + b"\xff" * 64):
        with pytest.raises(ImportModelError, match="TFLite"):
            import_tflite(data)


def test_shared_tables_do_not_grow_without_bound():
    """Each of four tables holds the next a thousand times over."""
    count, layers = 1000, 4
    size = 20 + 4 * count  # of a layer: places of the fields, the table, its vector
    data = bytearray(struct.pack("<I", 12))
    for layer in range(layers):
        last = layer == layers - 1
        data += struct.pack("<HHHH", 6, 8, 0 if last else 4, 0) + struct.pack("<iI", 8, 4) + struct.pack("<I", count)
        data += b"".join(
            struct.pack("<I", 4 + size * (layer + 1) + 8 - (4 + size * layer + 20 + 4 * i)) for i in range(count)
        )
    reader = Reader(memoryview(bytes(data)), schema("Node next:[Node]"), {}, "")
    with pytest.raises(ImportModelError, match="more values than bytes"):
        reader.root("Node")


def test_subgraphs_that_hold_themselves_are_refused():
    model = Model()
    g = model.subgraph()
    c, x = g.input((), np.bool_), g.input((2,))
    options: dict[str, Any] = {"then_subgraph_index": 0, "else_subgraph_index": 0}
    g.outputs = list(g.op("IF", [c, c, x], [g.tensor((2,))], "If", **options))
    with pytest.raises(ImportModelError, match="without end"):
        import_tflite(model.finish())


def test_weights_that_do_not_fit_their_sizes_are_refused():
    model = Model()
    g = model.subgraph()
    w = g.tensor((1000, 1000), data=bytes(12))
    g.outputs = list(g.op("ABS", [w], [g.tensor((1000, 1000))]))
    with pytest.raises(ImportModelError, match="1000000 elements"):
        import_tflite(model.finish())


def test_interpreted_without_inputs():
    data = one_op("ABS", [np.array([-1.5, 2], np.float32)], [((2,),)])
    assert interpret(import_tflite(data).graph, [])[0].tolist() == [1.5, 2]
