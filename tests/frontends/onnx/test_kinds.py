"""Whole networks whose sizes their data decides, exported with open sizes: one program, as ONNX Runtime computes it.

Networks of speech, detectors and decoders of `tests/models`, with random weights; the scripted ones loop on values.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ingot
from tests.guard import check_all

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

_ORT: Any = onnxruntime.capi.onnxruntime_pybind11_state  # type: ignore[attr-defined]
Feed = dict[str, np.ndarray]
Axes = dict[str, dict[int, str]]
SCRIPTED = ("Tacotron", "RNNT", "Beam", "Cached")


def _ids(t: int, b: int = 1) -> Feed:
    return {"ids": np.random.default_rng(t).integers(1, 9, (b, t))}


def _normal(name: str, *shape: int) -> Feed:
    return {name: np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32)}


def _lengths(t: int, b: int) -> np.ndarray:
    return np.array([t, max(1, t - 2)][:b])


def _speech(t: int, b: int, names: Sequence[str], scales: Sequence[float]) -> Feed:
    return dict(zip(names, (_ids(t, b)["ids"], _lengths(t, b), np.array(scales, np.float32)), strict=True))


def _piper(t: int, b: int = 1) -> Feed:
    return _speech(t, b, ("input", "input_lengths", "scales"), (0, 1, 0))


def _matcha(t: int, b: int = 1) -> Feed:
    return _speech(t, b, ("x", "x_lengths", "scales"), (0, 1))


def _kokoro(t: int, speed: float = 1) -> Feed:
    return {"input_ids": _ids(t)["ids"], **_normal("style", 1, 16), "speed": np.array([speed], np.float32)}


def _fast(factor: str, t: int, b: int = 1, value: float = 1) -> Feed:
    return {**_ids(t, b), factor: np.array([value], np.float32)}


def _beam(n: int) -> Feed:
    return {"start": np.array([n % 9]), "n": np.array(n)}


def _points(n: int) -> Feed:
    return {"pts": np.random.default_rng(n).uniform(-2, 2, (n, 3)).astype(np.float32)}


TEXT: Axes = {"ids": {0: "b", 1: "t"}}
IMAGE: Axes = {"x": {2: "h", 3: "w"}}
# of each network: its inputs from sizes, open axes, and sizes; the last are those of the export
NETS: dict[str, tuple[Any, Axes, list[Any]]] = {
    "Piper": (_piper, {"input": {0: "b", 1: "t"}, "input_lengths": {0: "b"}}, [(6,), (1,), (13,), (9, 2)]),
    "Matcha": (_matcha, {"x": {0: "b", 1: "t"}, "x_lengths": {0: "b"}}, [(6,), (1,), (13,), (9, 2)]),
    "Kokoro": (_kokoro, {"input_ids": {1: "t"}}, [(6,), (1,), (13,), (9, 1.5)]),
    "FastSpeech2": (partial(_fast, "alpha"), TEXT, [(5,), (11, 2), (7, 3, 1.7)]),
    "FastPitch": (partial(_fast, "pace"), TEXT, [(5,), (1,), (7, 3, 1.7)]),
    "CTC": (lambda t: _normal("x", 1, t, 8), {"x": {1: "t"}}, [(1,), (40,), (9,)]),
    "Unique": (_points, {"pts": {0: "n"}}, [(1,), (333,), (50,)]),
    "Pruned": (lambda h, w: _normal("x", 1, 3, h, w), IMAGE, [(4, 4), (32, 20), (16, 16)]),
    "Confident": (lambda h, w: _normal("x", 1, 3, h, w), IMAGE, [(1, 1), (32, 20), (16, 16)]),
    "Trim": (lambda t: _normal("x", 1, t), {"x": {1: "t"}}, [(3,), (101,), (50,)]),
    "Crop": (lambda h, w: _normal("x", 1, 1, h, w), IMAGE, [(3, 3), (32, 20), (16, 16)]),
    "Tacotron": (_ids, {"ids": {1: "t"}}, [(1,), (11,), (5,)]),
    "RNNT": (lambda t: _normal("x", 1, t, 4), {"x": {1: "t"}}, [(1,), (30,), (9,)]),
    "Beam": (_beam, {}, [(1,), (9,), (4,)]),
    "Cached": (_ids, {"ids": {1: "t"}}, [(1,), (9,), (4,)]),
}


def _network(name: str) -> Any:
    from tests.models import deciders, speech

    torch.manual_seed(1)
    net = getattr(speech if hasattr(speech, name) else deciders, name)().eval().requires_grad_(False)
    return torch.jit.script(net) if name in SCRIPTED else net


def _export(net: Any, feed: Feed, axes: Axes, path: Path, *, is_new: bool) -> None:
    example = tuple(map(torch.tensor, feed.values()))
    options: dict[str, Any] = {"dynamic_axes": axes, "opset_version": 17}
    if is_new:
        dynamic = torch.export.Dim.DYNAMIC
        shapes = tuple({axis: dynamic for axis in axes.get(name, {})} for name in feed)
        options = {"dynamic_shapes": shapes, "external_data": False, "verbose": False}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(net, example, path, input_names=[*feed], dynamo=is_new, **options)


def _reference(net: Any, session: onnxruntime.InferenceSession, feed: Feed) -> Sequence[np.ndarray]:
    """What ONNX Runtime computes, or PyTorch where it fails (lists whose lengths change from call to call)."""
    names = {i.name for i in session.get_inputs()}
    try:
        return [np.asarray(y) for y in session.run(None, {k: v for k, v in feed.items() if k in names})]
    except (_ORT.RuntimeException, _ORT.InvalidArgument):
        results = net(*map(torch.tensor, feed.values()))
        return [y.numpy() for y in (results if isinstance(results, tuple) else (results,))]


def _check(name: str, path: Path, *, is_new: bool) -> None:
    make, axes, sizes = NETS[name]
    net = _network(name)
    _export(net, make(*sizes[-1]), axes, path, is_new=is_new)
    compiled: Any = ingot.compile(path, threads=1, cache=False)
    assert compiled.is_one_program
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, settings)
    feeds: list[Feed] = [make(*of) for of in sizes]
    for feed in feeds:
        results = compiled(**feed)
        for y, want in zip(
            results if isinstance(results, tuple) else (results,), _reference(net, session, feed), strict=True
        ):
            np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4, strict=True)
    check_all({str(of): partial(compiled, **feed) for of, feed in zip(sizes, feeds, strict=True)})


@pytest.mark.parametrize("name", NETS)
def test_as_torch_script_exports_it(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path / "model.onnx", is_new=False)


# the new exporter takes seconds, half a minute for Piper
@pytest.mark.parametrize("name", ["Confident", "Crop"])
def test_as_torch_export_exports_it(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path / "model.onnx", is_new=True)
