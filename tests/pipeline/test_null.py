"""The null target: another's passes and schedules, without code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of, target_of
from ingot.runtime import artifact, device
from ingot.support.errors import InputError


def softmax() -> Graph:
    x = Input("x", TensorType(f32, (4, 33)))()
    return Graph((x,), (ops.Softmax(1)(x),))


@pytest.mark.parametrize("other", ["native", "cpu:neoverse-n1", "cuda:sm_90a", "c"])
def test_kernels_are_those_of_the_other_target(other: str) -> None:
    built, stood_in = Trace(), Trace()
    features, null = features_of(other), features_of(f"null:{other}")
    assert target_of(null).name == "null" and null.target == f"null:{features.target}"
    program = build_program(softmax(), null, 1, trace=stood_in)
    if not other.startswith("cuda"):  # making cubins takes Triton
        build_program(softmax(), features, 1, trace=built)
        assert stood_in.kernels == built.kernels
    text = program.code["null"].blob.decode()
    assert text.count("kernel ") == len(stood_in.kernels) >= 1


def test_its_programs_are_saved_and_refused_where_they_would_run(tmp_path: Path) -> None:
    program = build_program(softmax(), features_of("null:cuda:sm_90a"), 1)
    artifact.save(program, tmp_path / "m.ingot")
    loaded = artifact.load(tmp_path / "m.ingot")
    assert loaded.code["null"].features == program.code["null"].features
    refused = device.refusal(loaded)
    assert refused is not None and "null:cuda sm_90a" in str(refused)
    np.testing.assert_array_equal(loaded.weights, program.weights)


@pytest.mark.parametrize("text", ["null:null", "null:gpu", "null:null:cpu"])
def test_what_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="target"):
        features_of(text)
