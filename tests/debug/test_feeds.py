from pathlib import Path

import numpy as np
import onnx
import pytest

from ingot.debug.build import build
from ingot.debug.feeds import (
    as_given,
    cases,
    choose_sizes,
    index_limits,
    parse_sizes,
    random_feeds,
    read_archive,
    read_feeds,
)
from ingot.debug.source import open_source, parse_dims, read_graph
from ingot.runtime.expr import Expr
from ingot.runtime.program import Program, Symbol, TensorSpec
from ingot.support.errors import ImportModelError, InputError
from tests.debug.models import save, tokens


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory):
    path = save(tokens(), tmp_path_factory.mktemp("m") / "tokens.onnx")
    return build(read_graph(open_source(path)), threads=1)


def test_random_ids_stay_below_the_table_they_select_from(built):
    limits = index_limits(built.graph)
    assert limits == {"ids": 11}
    feeds = random_feeds(built.program, {"batch": 5, "length": 40}, limits)
    assert feeds["ids"].dtype == np.int64 and feeds["ids"].shape == (5, 40)
    assert feeds["ids"].min() >= 0
    assert feeds["ids"].max() in range(6, 11)
    repeated = random_feeds(built.program, {"batch": 5, "length": 40}, limits)
    assert (feeds["ids"] == repeated["ids"]).all()


def test_integers_of_unknown_meaning_are_masks_that_keep_something(built):
    mask = random_feeds(built.program, {"batch": 4, "length": 6})["ids"]
    assert set(np.unique(mask)) == {0, 1} and (mask[:, 0] == 1).all()


def test_sizes_differ_from_case_to_case_and_may_be_given(built):
    assert len(cases(built.program, [])) == 3
    assert choose_sizes(built.program, 0)["batch"] == 1
    assert cases(built.program, [{"length": 9}]) == [{"batch": 1, "length": 9}]
    with pytest.raises(InputError, match="one of the model's symbols"):
        choose_sizes(built.program, 0, {"lenght": 9})


def _image_program(height: Expr, width: Expr) -> Program:
    spec = TensorSpec("image", "f32", (1, 3, height, width))
    symbols = tuple(Symbol(name, 1, None) for name in ("h", "w"))
    return Program(symbols, (spec,), (), (), (), {}, np.zeros(0, np.uint8))


def test_sizes_are_those_of_the_inputs():
    program = _image_program(("h", 32, "*"), ("w",))
    assert choose_sizes(program, 0) == {"h": 7, "w": 224}  # images, not sequences
    assert choose_sizes(program, 0, {"h": 320, "w": 5}) == {"h": 10, "w": 5}
    assert as_given(program, {"h": 10, "w": 5}) == {"h": 320, "w": 5}
    assert choose_sizes(program, 1) == {"h": 4, "w": 97}
    with pytest.raises(InputError, match="a multiple of 32, got 10"):
        choose_sizes(program, 0, {"h": 10})


def test_size_and_dim_texts():
    assert parse_sizes(["batch=1,length=8", "batch=2"]) == [{"batch": 1, "length": 8}, {"batch": 2}]
    assert parse_dims(["a=1", "b=2:9", "c=4:"]) == {"a": 1, "b": (2, 9), "c": (4, None)}
    for text in ("batch", "=3", "batch=-1", "batch=x"):
        with pytest.raises(InputError):
            parse_sizes([text])
        with pytest.raises(InputError):
            parse_dims([text])


def test_arrays_from_files(built, tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros((1, 2), np.int64))
    assert read_feeds(built.program, [f"ids={tmp_path / 'x.npy'}"])["ids"].shape == (1, 2)
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY, not quite")
    for text in (f"ids={tmp_path / 'bad.npy'}", f"ids={tmp_path / 'none.npy'}", f"idz={tmp_path / 'x.npy'}"):
        with pytest.raises(InputError):
            read_feeds(built.program, [text])


def test_a_pickle_is_refused(built, tmp_path: Path):
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(InputError, match="written by numpy"):
        read_feeds(built.program, [f"ids={tmp_path / 'evil.npy'}"])


def test_files_that_hold_no_arrays(tmp_path: Path):
    archive = tmp_path / "whole.npz"
    np.savez(archive, x=np.arange(1000))
    for name, data in (("cut", archive.read_bytes()[:700]), ("text", b"hello"), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match="damaged or of another kind"):
            read_archive(tmp_path / name)
    with pytest.raises(InputError, match="No such file"):
        read_archive(tmp_path / "none")


def test_files_that_are_no_models(tmp_path: Path):
    with pytest.raises(ImportModelError, match="cannot read the model"):
        open_source(tmp_path / "none.onnx")
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"\x0a\xffjunk")
    with pytest.raises(ImportModelError):
        read_graph(open_source(junk))


def test_names_and_types_suggest_ranges(tmp_path: Path) -> None:
    F, I, U = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.UINT8
    inputs = [("x", F, ["b", "n"]), ("x_lens", I, ["b"]), ("sr", I, [])]
    inputs += [("image", U, ["b", 3, 4, 4]), ("mask", I, ["b", 5])]
    values = [onnx.helper.make_tensor_value_info(*v) for v in inputs]
    results = [onnx.helper.make_tensor_value_info(f"y{i}", kind, None) for i, (_, kind, _) in enumerate(inputs)]
    nodes = [onnx.helper.make_node("Identity", [name], [f"y{i}"]) for i, (name, *_) in enumerate(inputs)]
    graph = onnx.helper.make_graph(nodes, "g", values, results)
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), path)
    feeds = random_feeds(build(read_graph(open_source(path)), threads=1).program, {"b": 40, "n": 100})
    assert 50 <= feeds["x_lens"].min() < feeds["x_lens"].max() <= 100
    assert feeds["sr"].shape == () and feeds["sr"] == 16000
    assert feeds["image"].max() > 200 and set(np.unique(feeds["mask"])) == {0, 1}
