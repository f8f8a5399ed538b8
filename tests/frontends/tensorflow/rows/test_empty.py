"""Axes of open size without elements, with one and with five: TensorFlow's answer, or an error where it has one, and no
access outside of a buffer (`tools/tensorflow_empty.py`)."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.support.errors import IngotError
from tests.frontends.tensorflow.fixtures import Fixture, fixture, names
from tests.guard import ENDS, End, check_all

# errors of TensorFlow where Ingot clamps an index (documented), or answers without elements to read; and a window on
# no rows or columns, of which TensorFlow makes none
LENIENT = {"out_gather", "out_gather_batch", "out_gather_nd", "out_element", "out_scatter_update", "out_boxes"}
STRICT = {"out_conv", "out_slice_gradient"}


def _check(made: Fixture, name: str) -> None:
    compiled = ingot.compile(made.path, outputs=[name], threads=1, cache=False, limits=ingot.Limits(seconds=20))
    for inputs, outputs in made.calls:
        try:
            got = compiled(**{spec.name: inputs[spec.name] for spec in compiled.inputs})
        except IngotError as e:
            assert name not in outputs or (name in STRICT and not inputs["x"].size), e
            continue
        if name not in outputs:
            assert name in LENIENT or not np.size(got), f"TensorFlow has an error for {len(inputs['x'])}, got {got}"
            continue
        np.testing.assert_allclose(got, outputs[name], rtol=1e-4, atol=1e-5, err_msg=f"of {len(inputs['x'])}")


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "end"), [*zip(names("empty"), cycle(ENDS), strict=False)])
def test_sizes_that_may_be_0(name: str, end: End, tmp_path: Path) -> None:
    check_all({name: partial(_check, fixture("empty", tmp_path), name)}, [end])
