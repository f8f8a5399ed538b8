"""Steps that exchange values, as a plan of a file may have them: checked before memory is touched."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from ingot.runtime.plan_json import from_json, to_json
from ingot.runtime.program import Collective, Program
from ingot.support.errors import ArtifactError, VerifyError
from tests.runtime.cuda.programs import summed

GROUPS = ((0, 1),)


def with_step(collective: Collective, count: int = 4, args: tuple[tuple[int, int], ...] = ((2, 0), (3, 0))) -> Program:
    program = summed(*GROUPS)
    static = {0: 16, 1: 16, 2: 16, 3: 16, 4: 16}
    buffers = tuple(replace(b, nbytes=static[b.id]) for b in program.buffers)
    steps = list(program.steps)
    steps[1] = replace(steps[1], collective=collective, dims=(count,), args=args)
    return replace(program, buffers=buffers, steps=tuple(steps))


def test_a_plan_keeps_its_collectives() -> None:
    program = summed((0, 2), (3, 1))
    data = json.loads(json.dumps(to_json(program)))
    blobs = {name: code.blob for name, code in program.code.items()}
    read = from_json(data, blobs=blobs, weights=program.weights, stages={})
    assert [s.collective for s in read.steps] == [s.collective for s in program.steps]


@pytest.mark.parametrize(
    "wrong",
    [
        ["all_reduce", [[0, 1]], "f32", "sum"],
        ["all_reduce", [[0, "1"]], "f32", "sum", 0],
        ["all_reduce", [[0, 1], [2]], "f32", "sum", 0],
        ["all_reduce", [[0, 0]], "f32", "sum", 0],
        ["all_reduce", [[0, -1]], "f32", "sum", 0],
        ["all_reduce", [], "f32", "sum", 0],
        ["all_reduce", [[0, 1]], "f32", "", 0],
        ["all_reduce", [[0, 1]], "f32", "xor", 0],
        ["all_gather", [[0, 1]], "f32", "sum", 0],
        ["system", [[0, 1]], "f32", "", 0],
        ["all_reduce", [[0, 1]], "f33", "sum", 0],
        ["all_reduce", 7, "f32", "sum", 0],
    ],
)
def test_malformed_collectives_are_refused(wrong: Any) -> None:
    program = summed(*GROUPS)
    data = cast("dict[str, Any]", json.loads(json.dumps(to_json(program))))
    data["steps"][1][-1] = wrong
    blobs = {name: code.blob for name, code in program.code.items()}
    with pytest.raises(ArtifactError, match="malformed"):
        from_json(data, blobs=blobs, weights=program.weights, stages={})


@pytest.mark.parametrize(
    ("collective", "count"),
    [
        (Collective("all_reduce", GROUPS, "f32", "sum"), 5),
        (Collective("all_reduce", GROUPS, "f64", "sum"), 3),
        (Collective("all_gather", GROUPS, "f32"), 3),
        (Collective("reduce_scatter", GROUPS, "f32", "sum"), 3),
        (Collective("all_reduce", GROUPS, "f32", "sum"), -1),
        (Collective("all_reduce", GROUPS, "f32", "sum"), 1 << 61),
    ],
    ids=str,
)
def test_an_exchange_stays_within_its_buffers(collective: Collective, count: int) -> None:
    with_step(Collective("all_reduce", GROUPS, "f32", "sum")).check()
    with pytest.raises(VerifyError):
        with_step(collective, count).check()


@pytest.mark.parametrize("args", [((2, 0),), ((2, 0), (9, 0)), ((2, 4), (3, 0)), ((2, 0), (3, -4))])
def test_arguments_of_an_exchange(args: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(VerifyError):
        with_step(Collective("all_reduce", GROUPS, "f32", "sum"), args=args).check()
