"""Plans under digests that are right: no step is given memory that is not its buffer's, whatever a plan says."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ingot.runtime import artifact
from ingot.runtime.cpu.image import CodeImage
from ingot.runtime.cpu.instance import Instance
from ingot.runtime.dtypes import itemsize
from ingot.runtime.expr import MAX_BITS, check, evaluate
from ingot.runtime.plan_json import digest, from_json, sealed, to_json
from ingot.runtime.program import Program
from ingot.support.errors import ArtifactError, IngotError, VerifyError
from tests.runtime import models

N = 70_000
DYNAMIC, STATIC = models.dynamic(), models.static(N)


def plan_of(program: Program) -> Any:
    return json.loads(json.dumps(to_json(program)))


def loaded(data: Any, program: Program, *, seal: bool = False) -> Program:
    blobs = {target: code.blob for target, code in program.code.items()}
    plans = {target: code.plan for target, code in program.code.items()} if seal else {}
    first = b"".join(s.initial.tobytes() for s in program.state)
    return from_json(data, blobs=blobs, plans=plans, weights=program.weights, stages={}, first=first)


def arg(buffer: int = 0, offset: object = 0) -> Callable[[Any], None]:
    return lambda plan: plan["steps"][0].__setitem__(1, [[buffer, offset]])


def field(part: str, number: int, index: int, value: object) -> Callable[[Any], None]:
    return lambda plan: plan[part][number].__setitem__(index, value)


def part(offset: int) -> Callable[[Any], None]:
    """A buffer that is all of the first input but for its offset."""
    return lambda plan: plan["buffers"].append(
        [90, "input", 4 * N, *plan["buffers"][0][3:ALIAS], [0, offset], "", "cpu"]
    )


ID, KIND, NBYTES, OFFSET, FILL, ALIAS, DEVICE = 0, 1, 2, 5, 8, 9, 11
HOSTILE: dict[str, tuple[str, Callable[[Any], None]]] = {
    "an offset beyond the buffer": ("an offset into", arg(0, 4 * N + 1)),
    "an offset before the buffer": ("an offset into", arg(0, -4)),
    "an input that is larger than its array": ("at most 280000 bytes", field("buffers", 0, NBYTES, 4 * N + 4)),
    "an output that is larger than its array": ("at most 280000 bytes", field("buffers", 2, NBYTES, 4 * N + 1)),
    "an output of a smaller type": ("at most 140000 bytes", field("outputs", 0, 1, "f16")),
    "an output of a smaller shape": ("at most 279996 bytes", field("outputs", 0, 2, [N - 1])),
    "an input of a smaller shape": ("at most 4 bytes", field("inputs", 0, 2, [1])),
    "dims below 0": ("0 or more", field("outputs", 0, 2, [-1, -N])),
    "more dims than arrays have": ("at most 64 dims", field("outputs", 0, 2, [1] * 100_000 + [N])),
    "a buffer below 0": ("0 or more", field("buffers", 3, NBYTES, -8)),
    "scratch below 0": ("scratch", lambda plan: plan.update(scratch_bytes=-1)),
    "an output that nothing writes": ("write all outputs", lambda plan: plan["steps"].pop()),
    "no steps": ("write all outputs", lambda plan: plan["steps"].clear()),
    "weights that are not aligned": ("aligned", field("buffers", 1, OFFSET, 4)),
    "an alias that is too large": ("at most 280000 bytes", part(4)),
    "an alias before its buffer": ("at most 280000 bytes", part(-4)),
    "a device without code": ("device", field("buffers", 0, DEVICE, "cuda")),
    "a fill that is no byte": ("byte", field("buffers", 3, FILL, 256)),
    "a division by 0": ("divisor", field("steps", 0, 3, [4, 1, 1, "-", "//"])),
    "a product of 100,000 sizes": ("bits", field("steps", 0, 3, [1 << 61, *[1 << 61, "*"] * 100_000])),
    "a flag behind its buffer": ("an offset into", lambda plan: plan["steps"].append(
        ["", [[0, 4 * N]], [], 1, "", 1, 1, "cpu", None])),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_plans_are_refused(case: str) -> None:
    message, change = HOSTILE[case]
    plan = plan_of(STATIC)
    assert loaded(plan, STATIC)
    change(plan)
    begin = time.process_time()
    with pytest.raises(ArtifactError, match=message):
        loaded(plan, STATIC)
    assert time.process_time() - begin < 2


def test_plans_are_checked_in_time_linear_in_them() -> None:
    plan, count = plan_of(STATIC), 20_000
    buffer = plan["buffers"][3]
    plan["buffers"] += [[1000 + i, *buffer[1:ALIAS], [buffer[ID], 0], *buffer[ALIAS + 1 :]] for i in range(count)]
    plan["steps"][0][1] += [[1000 + i, 0] for i in range(count)]
    plan["steps"][0][2] += [[1, *[1, "+"] * count]]
    begin = time.process_time()
    loaded(plan, STATIC)
    assert time.process_time() - begin < 2
    for i in range(1, count):
        plan["buffers"][-i][ALIAS] = [plan["buffers"][-i - 1][ID], 0]  # a chain, which could be walked again and again
    with pytest.raises(ArtifactError, match="an alias of a buffer that is not an alias"):
        loaded(plan, STATIC)


def test_values_have_a_bound() -> None:
    expr = ("n", *("n", "*") * (MAX_BITS // 63 - 1))
    check(expr, {"n"}, "here")
    assert evaluate(expr, {"n": 2}) == 2 ** (MAX_BITS // 63)
    with pytest.raises(VerifyError, match="bits"):
        check((*expr, "n", "*"), {"n"}, "here")


@cache
def fuzz() -> Any:
    from tests import test_fuzz

    return test_fuzz.fuzz


@cache
def compiled() -> tuple[Program, ...]:
    """Programs of hand-written and of compiled kernels, with fixed and with open sizes."""
    from ingot.pipeline.build import build_program
    from tests.conformance.dags import STEPS, random_graph
    from tests.conformance.targets import HOST

    graphs = (random_graph(seed, seed % 2 == 0, 4, STEPS)[0] for seed in range(3))
    return STATIC, DYNAMIC, *(build_program(graph, HOST, 1) for graph in graphs)


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_no_step_is_given_memory_that_is_not_its_own(first: int) -> None:
    """Mutated plans of code that says nothing of its plan: each that is bound stays within its memory."""
    bound = 0
    for seed in range(first, first + 100):
        rng = random.Random(seed)
        original = rng.choice(compiled())
        plan = plan_of(original)
        for _ in range(rng.choice((1, 1, 2, 4))):
            fuzz().mutate_json(plan, rng)
        try:
            program = loaded(plan, original)
            sizes = {s.name: 8 for s in program.symbols}
            shapes = [tuple(evaluate(dim, sizes) for dim in spec.shape) for spec in program.arguments]
            facts = [tuple(evaluate(e, sizes) for e in s.elements) for s in program.arguments if s.elements]
            instance = Instance(program, (*shapes, *facts), CodeImage(program.code["cpu"]))
        except IngotError:
            continue
        bound += 1
        within(program, instance, shapes)
    assert bound > 5


def within(program: Program, instance: Instance, shapes: list[tuple[int, ...]]) -> None:
    def nbytes(shape: tuple[int, ...], dtype: str) -> int:
        count = itemsize(dtype)
        for n in shape:
            count *= n
        return count

    states = [nbytes(s.shape, s.spec.dtype) for s in program.state]
    memory = [instance.layout.nbytes, program.weights.nbytes]
    memory += [nbytes(shape, spec.dtype) for shape, spec in zip(shapes, program.arguments, strict=True)]
    memory += [*states, *(n for *_, n in instance.results), 8 * len(program.sizes), 8 * len(instance._table)]
    memory += [size for *_, size in instance.layout.images]
    by_id = {buffer.id: buffer for buffer in program.buffers}
    for step, record in zip(program.steps, instance.records, strict=True):
        start = (int(record[1]) - instance._table.ctypes.data) // 8
        for i, (identity, offset) in enumerate(step.args):
            base, place = instance._table[start + 2 * i : start + 2 * i + 2].tolist()
            buffer = by_id[identity]
            size = evaluate(buffer.nbytes, instance.upper_bounds) - evaluate(offset, instance.values)
            size = 0 if buffer.kind == "table" else size
            assert 0 <= place <= place + max(size, 0) <= memory[base], (step, buffer)


def test_code_runs_the_plan_that_it_was_made_for_alone() -> None:
    """What no plan can tell wrong: counts of chunks, dims, places in tables."""
    program = compiled()[-1]
    assert loaded(plan_of(program), program, seal=True).code == program.code
    for change in (
        field("steps", 0, 3, 2), field("steps", 0, 5, 2), field("steps", 0, 2, [7]),
        lambda plan: plan["steps"].reverse(), lambda plan: plan["inputs"].reverse(),
    ):  # fmt: skip
        plan = plan_of(program)
        change(plan)
        if plan != plan_of(program):
            with pytest.raises(ArtifactError):
                loaded(plan, program, seal=True)
    plan = plan_of(program)
    plan["meta"]["note"] = "for people"
    assert loaded(plan, program, seal=True).meta["note"] == "for people"
    sealed_program = sealed(STATIC)
    assert loaded(plan_of(sealed_program), sealed_program, seal=True) and loaded(
        plan_of(sealed_program), replace(sealed_program), seal=True
    )


def test_files_hold_the_digest_of_their_plan(tmp_path: Path) -> None:
    """Whatever its last byte is; code that names no plan might be told to loop for ever."""
    for notes in range(600):  # a digest ends in 0 once in 256
        program = replace(STATIC, inputs=(replace(STATIC.inputs[0], name=f"x{notes}"), *STATIC.inputs[1:]))
        program = sealed(program) if notes % 2 else program
        if digest(to_json(program))[-1] == 0 or notes < 2:
            artifact.save(program, tmp_path / "m.ingot")
            assert artifact.load(tmp_path / "m.ingot").inputs == program.inputs
    parts = artifact.content(replace(STATIC, code={k: replace(c, plan=bytes(16)) for k, c in STATIC.code.items()}))
    (tmp_path / "m.ingot").write_bytes(b"".join(parts))
    with pytest.raises(ArtifactError, match="the plan that its code was compiled for"):
        artifact.load(tmp_path / "m.ingot")
