"""Steps whose attention reads pages by itself: by lowered ops on a CPU, and by the meaning of a GPU's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.ir.node import Graph
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e5m2, f16, f32, i8
from ingot.language.cache import CacheForm
from ingot.language.config import from_config
from ingot.language.engine.program import paged_step, step
from ingot.language.engine.sequence import SequencePart
from ingot.language.generate import generate
from ingot.language.layers import Network
from ingot.language.session import Sampling, Session
from ingot.language.text.generation import Request, Transcript
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from tests.conformance.checked import first_state, planned, run_planned
from tests.language.engine.test_program import CONTEXT, PAGES, SEQUENCES, Trial, near, reference
from tests.language.models import MODELS, compiled, model, network
from tests.language.test_targets import CONFIG, InBlocks

SAMPLES = 3
H100 = "cuda:sm_90a"


class Interpreted:
    """A program by the meaning of its kernels, in place of a compiled one."""

    def __init__(self, graph: Graph) -> None:
        self._program, self._kernels = planned(graph, H100)
        self._state = [np.array(x) for x in first_state(self._program)]
        self.inputs, self.outputs = self._program.inputs, self._program.outputs

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return [*run_planned(self._program, self._kernels, inputs, self._state)]

    def state(self) -> dict[str, np.ndarray]:
        return {s.spec.name: x for s, x in zip(self._program.state, self._state, strict=True)}

    def set_state(self, values: dict[str, np.ndarray]) -> None:
        for name, value in values.items():
            self.state()[name][...] = value


def reported(s: Trial, part: SequencePart) -> SequencePart:
    """The same of a request that asks for logprobs."""
    transcript = Transcript(
        None, part.transcript.ids, Request(1, Sampling(temperature=0.0), logprobs=0), CONTEXT, s.vocabulary
    )
    return SequencePart(part.slot, part.pages, part.start, part.ids, part.is_chunk, transcript, part.biases)


@pytest.mark.parametrize("name", ["gemma 3", "qwen 3 mixture"])
def test_logits(name: str, tmp_path: Path) -> None:
    """Chunks and tokens beside each other, more of them than a call draws."""
    net = model(*MODELS[name])
    language = network(net, tmp_path, CONTEXT)
    s = Trial(
        compiled(paged_step(language, CacheForm.paged(language.architecture, SEQUENCES, CONTEXT, PAGES), SAMPLES)),
        61,
        0,
    )
    a, b = s.rng.integers(3, 61, 45).tolist(), s.rng.integers(3, 61, 20).tolist()
    s.stepper.run([s.part(0, a[:13], 0, is_chunk=True), s.part(2, b[:9], 0, is_chunk=True)])
    parts = [s.part(0, a[:40], 13, is_chunk=True), s.part(2, b[:12], 9, is_chunk=False, sampled=3)]
    first, second = s.stepper.run([reported(s, part) for part in parts])
    near(first.logits, reference(net, a[:40])[-1:])
    near(second.logits, reference(net, b[:12])[-3:])
    (rest,) = s.stepper.run([s.part(0, a, 40, is_chunk=False, sampled=5)])
    assert rest.tokens == reference(net, a)[-5:].argmax(1).tolist()
    assert rest.logits == []  # nobody asks for them


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [f32, f16, bf16, i8, f8e4m3fn, f8e5m2])
def test_kernels(dtype: DType) -> None:
    """Kernels of a GPU give what those of a CPU do, and nothing of the pools is copied."""
    language = Network(from_config(CONFIG), InBlocks(), CONTEXT)
    form = CacheForm.paged(language.architecture, SEQUENCES, CONTEXT, PAGES, dtype)
    interpreted: Any = Interpreted(paged_step(language, form, SAMPLES))
    s, other = Trial(interpreted, 96, 0), Trial(compiled(step(language, form)), 96, 0)
    program = interpreted._program
    assert not any(state.copy_reason for state in program.state)
    assert sum("attention" in step.kernel for step in program.steps) == 1
    a, b = s.rng.integers(3, 96, 22).tolist(), s.rng.integers(3, 96, 20).tolist()
    for ends in ((9, 17), (22, 18)):
        parts = [
            s.part(i, ids[:end], 0 if end < 18 else start, is_chunk=False)
            for i, ids, end, start in zip((1, 3), (a, b), ends, (9, 17), strict=True)
        ]
        got, want = s.stepper.run([reported(s, part) for part in parts]), other.stepper.run(parts)
        for x, y in zip(got, want, strict=True):
            near(x.logits, np.stack(y.logits), 2e-3)


def test_drawn_tokens() -> None:
    """Settings, bias and penalties of each sample, as steps of a CPU have them."""
    language = Network(from_config(CONFIG), InBlocks(), CONTEXT)
    form = CacheForm.paged(language.architecture, SEQUENCES, CONTEXT, PAGES, f32)
    results: list[list[int]] = []
    for program in (compiled(paged_step(language, form, SAMPLES)), compiled(step(language, form))):
        s = Trial(program, 96, 0)
        ids = s.rng.integers(3, 96, (3, 20)).tolist()
        settings = (
            Sampling(temperature=0.0),
            Sampling(1.5, 20, 0.9, seed=7),
            Sampling(2.0, repetition_penalty=1.7, seed=3),
        )
        parts = []
        for slot, sampling in enumerate(settings):
            transcript = Transcript(None, ids[slot], Request(1, sampling), CONTEXT, 96)
            bias = np.where(np.arange(96) % 3, 0, -np.inf).astype(np.float32) if slot == 2 else None
            parts.append(SequencePart(slot, s.pages[slot], 0, ids[slot], True, transcript, [bias]))
        results.append([t for sampled in s.stepper.run(parts) for t in sampled.tokens])
    assert results[0] == results[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [f32, f8e4m3fn, i8])
def test_generate_reads_lengths(dtype: DType) -> None:
    """The loop depends on no size that the host would have to know."""
    language = Network(from_config(CONFIG), InBlocks(), CONTEXT)
    form = CacheForm.of(language.architecture, 1, CONTEXT, dtype)
    graph = generate(language, form, 4, has_lengths=True)
    program = Interpreted(graph)
    assert [size.name for size in program._program.sizes] == ["$at"]  # of the chunk, not of the loop
    native = compiled(generate(language, form, 4))
    ids = np.random.default_rng(0).integers(3, 96, 11).tolist()
    got, want = (Session(p, CONTEXT).step(ids, 11, 4, Sampling(temperature=0.0))[0] for p in (program, native))
    assert got == want


def test_cubins() -> None:
    language = Network(from_config(CONFIG), InBlocks(), CONTEXT)
    form = CacheForm.paged(language.architecture, SEQUENCES, CONTEXT, PAGES, f8e5m2)
    program = build_program(paged_step(language, form, SAMPLES), features_of("null:" + H100), 1, precision="bfloat16")
    assert not any(state.copy_reason for state in program.state)
