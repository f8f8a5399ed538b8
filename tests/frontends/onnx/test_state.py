"""Decoders whose past and present are state: inputs and outputs of the file, kept from call to call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.support.errors import InputError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

HEADS, LENGTH, WIDTH = 2, 12, 4
STATE = {"past_k": "present_k", "past_v": "present_v"}
TEXT = """<ir_version: 8, opset_import: ["" : 18]>
decoder (float[1,1,8] x, int64[1] at, float[1,2,12,4] past_k, float[1,2,12,4] past_v)
    => (float[1,1,8] y, float[1,2,12,4] present_k, float[1,2,12,4] present_v) {
  split = Constant <value_ints = [1, 1, 2, 4]> ()
  q = Reshape (x, split)
  heads = Transpose <perm = [0, 2, 1, 3]> (q)
  double = Add (heads, heads)
  present_k = UPDATE_K
  present_v = UPDATE_V
  keys = Transpose <perm = [0, 1, 3, 2]> (present_k)
  scores = MatMul (heads, keys)
  weights = Softmax <axis = -1> (scores)
  mixed = MatMul (weights, present_v)
  back = Transpose <perm = [0, 2, 1, 3]> (mixed)
  whole = Constant <value_ints = [1, 1, 8]> ()
  y = Reshape (back, whole)
}"""
# one row is written; a window slides
ROW = """ScatterElements <axis = 2> (past_{0}, places, {1})"""
WINDOW = """Concat <axis = 2> (kept_{0}, {1})"""


def decoder(form: str, path: Path) -> Path:
    text = TEXT.replace("UPDATE_K", form.format("k", "heads")).replace("UPDATE_V", form.format("v", "double"))
    extra_nodes = """split = Constant <value_ints = [1, 1, 2, 4]> ()
  shape = Constant <value_ints = [1, 2, 1, 4]> ()
  places = Expand (at, shape)
  one = Constant <value_ints = [1]> ()
  end = Constant <value_ints = [12]> ()
  two = Constant <value_ints = [2]> ()
  kept_k = Slice (past_k, one, end, two)
  kept_v = Slice (past_v, one, end, two)"""
    onnx.save(
        onnx.parser.parse_model(text.replace("split = Constant <value_ints = [1, 1, 2, 4]> ()", extra_nodes)), path
    )
    return path


@pytest.mark.parametrize(("form", "in_place"), [(ROW, True), (WINDOW, False)])
def test_a_decoder_keeps_its_past(form: str, in_place: bool, tmp_path: Path) -> None:
    path = decoder(form, tmp_path / "decoder.onnx")
    model = ingot.compile(path, state=STATE)
    assert [s.name for s in model.inputs] == ["x", "at"] and [s.name for s in model.outputs] == ["y"]
    assert all((s.copy_reason == "") == in_place for s in model.program.state)
    model.save(tmp_path / "decoder.ingot")
    saved = ingot.load(tmp_path / "decoder.ingot")
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    past, rng = [np.zeros((1, HEADS, LENGTH, WIDTH), np.float32)] * 2, np.random.default_rng(0)
    x, at = np.zeros((1, 1, 8), np.float32), np.asarray([0])
    for step in range(5):
        x, at = rng.standard_normal((1, 1, 8), np.float32), np.asarray([step])
        y, *past = session.run(None, {"x": x, "at": at, "past_k": past[0], "past_v": past[1]})
        for compiled in (model, saved):
            np.testing.assert_allclose(np.asarray(compiled(x, at)), y, rtol=1e-5, atol=1e-6)
            for name, value in zip(STATE, past, strict=True):
                np.testing.assert_allclose(compiled.state()[name], value, rtol=1e-6)
    with pytest.raises(InputError):
        model(x[..., 1:], at)
    np.testing.assert_allclose(model.state()["past_k"], past[0], rtol=1e-6)
    assert not ingot.compile(path, state=STATE).state()["past_k"].any()  # from the cache, with the first values


def test_where_there_is_no_state(tmp_path: Path) -> None:
    path = decoder(ROW, tmp_path / "decoder.onnx")
    with pytest.raises(InputError, match="output 'presents': expected one of y, present_k"):
        ingot.compile(path, state={"past_k": "presents"})
    assert len(ingot.compile(path).inputs) == 4
