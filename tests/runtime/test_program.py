import dataclasses
import json

import pytest

from ingot.runtime.plan_json import from_json, to_json
from ingot.runtime.program import Buffer, Program, Step, Symbol
from ingot.support.errors import ArtifactError, VerifyError
from tests.runtime import models


def blobs(program: Program) -> dict[str, bytes]:
    return {target: code.blob for target, code in program.code.items()}


@pytest.mark.parametrize("program", [models.static(), models.dynamic()])
def test_json_round_trip(program: Program):
    data = json.loads(json.dumps(to_json(program)))
    restored = from_json(data, blobs=blobs(program), weights=program.weights, stages=program.stages)
    assert dataclasses.replace(restored, weights=program.weights) == program


def broken(**changes: object) -> Program:
    return dataclasses.replace(models.static(), **changes)  # type: ignore[arg-type]


STATIC = models.static()
FEATURES = ["cpu", "x86_64", [], "", []]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (broken(symbols=(Symbol("n"),)), "no input dim determines the symbol"),
        (broken(buffers=(*STATIC.buffers, STATIC.buffers[0])), "same id"),
        (broken(steps=(Step("gone", ()),)), "expected a kernel of the code for cpu, got 'gone'"),
        (broken(steps=(Step("add", ((99, 0),)),)), "expected a declared buffer, got 99"),
        (broken(steps=(*STATIC.steps, Step("add", ((3, 0),)))), "expected buffer 3 alive"),
        (broken(buffers=(*STATIC.buffers, Buffer(90, "weight", 8, offset=4000))), "range of the 4000 bytes"),
        (broken(buffers=(*STATIC.buffers, Buffer(90, "output", 8, index=1))), "output index below 1"),
        (broken(buffers=(*STATIC.buffers, Buffer(90, "arena", 8, alias=(90, 0)))), "an alias of a buffer"),
        (broken(buffers=(*STATIC.buffers, Buffer(90, "arena", 8, alias=(0, 0)))), "the kind of the buffer"),
        (broken(buffers=(*STATIC.buffers, Buffer(90, "arena", ("m",)))), "size expression"),
    ],
)
def test_check_names_what_is_wrong(program: Program, message: str):
    with pytest.raises(VerifyError, match=message):
        program.check()


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 3},
        {"buffers": [[1, 2]]},
        {"inputs": [["x", "f33", [1]]]},
        {"inputs": [["x", "f32", [True]]]},
        {"code": {"cpu": [FEATURES, {"add": 1 << 40}]}},
        {"code": {"gone": [FEATURES, {}]}},
        {"code": {"cpu": [["cuda", *FEATURES[1:]], {}]}},
        {"code": {}},
        {"scratch_bytes": "many"},
        {"code": None},
    ],
)
def test_malformed_json_is_refused(change: dict[str, object]):
    data = json.loads(json.dumps(to_json(STATIC))) | change
    with pytest.raises(ArtifactError, match="the plan is malformed"):
        from_json(data, blobs=blobs(STATIC), weights=STATIC.weights, stages={})
