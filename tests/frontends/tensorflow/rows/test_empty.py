"""Axes of open size without elements, with one and with more: TensorFlow's answer, or an error where it has one, and no
access outside of a buffer (`tools/tensorflow_empty.py`, `tools/tensorflow_open.py`)."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.support.errors import IngotError, InputError
from tests.frontends.tensorflow.fixtures import Fixture, fixture, names
from tests.guard import ENDS, End, check_all

# errors of TensorFlow where Ingot clamps an index (documented), or answers without elements to read
LENIENT = {"out_gather", "out_gather_batch", "out_gather_nd", "out_element", "out_scatter_update", "out_boxes"}
STRICT = {"out_slice_gradient"}


def _check(bundle: Fixture, name: str) -> None:
    compiled = ingot.compile(bundle.path, outputs=[name], threads=1, cache=False, limits=ingot.Limits(seconds=20))
    for inputs, outputs in bundle.calls:
        try:
            got = compiled(**{spec.name: inputs[spec.name] for spec in compiled.inputs})
        except IngotError as e:
            assert name not in outputs or (name in STRICT and not inputs["x"].size), e
            continue
        if name not in outputs:
            assert name in LENIENT or not np.size(got), f"TensorFlow has an error for {len(inputs['x'])}, got {got}"
            continue
        np.testing.assert_allclose(got, outputs[name], rtol=1e-4, atol=1e-5, err_msg=f"of {len(inputs['x'])}")


_NAMES = [(which, name) for which in ("empty", "open") for name in names(which)]
CASES = [(*case, end) for case, end in zip(_NAMES, cycle(ENDS), strict=False)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("which", "name", "end"), CASES)
def test_sizes_that_may_be_0(which: str, name: str, end: End, tmp_path: Path) -> None:
    check_all({name: partial(_check, fixture(which, tmp_path), name)}, [end])


def test_a_loop_that_outgrows_its_room(tmp_path: Path) -> None:
    """Five doublings of two elements, of which the run may hold 16."""
    bundle = fixture("open", tmp_path)
    limits = ingot.Limits(sizes=16)
    compiled = ingot.compile(bundle.path, outputs=["out_double"], threads=1, cache=False, limits=limits)
    x = np.ones((4, 3), np.float32)
    values = {"image": np.zeros((1, 1, 1, 3), np.float32), "x": x, "plane": np.zeros((1, 1), np.float32)}
    for trip_count in (3, 5):
        inputs = {s.name: (values | {"n": np.array(trip_count, np.int32)})[s.name] for s in compiled.inputs}
        if 2 << trip_count <= 16:
            assert np.shape(compiled(**inputs)) == (2 << trip_count,)
        else:
            with pytest.raises(InputError, match="16"):
                compiled(**inputs)
