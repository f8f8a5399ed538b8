"""Steps of many sequences beside `transformers`, and their bits beside those of steps of one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.ir.types import DType, bf16, f8e4m3fn, f8e5m2, f16, f32, i8
from ingot.language.cache import CacheForm
from ingot.language.config import from_config
from ingot.language.engine.answer import Answer
from ingot.language.engine.paging import Steps
from ingot.language.engine.program import pool, step
from ingot.language.engine.sequence import Running, SequencePart
from ingot.language.engine.stepper import FEW_ROWS, Stepper
from ingot.language.layers import Network
from ingot.language.session import Sampling
from ingot.language.text.generation import Request, Transcript
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.executor import CompiledModel
from ingot.schedule.axes import MAX_FEW_ROWS
from ingot.support.errors import InputError
from tests.guard import failures
from tests.language.models import MODELS, compiled, model, network
from tests.language.test_targets import CONFIG, InBlocks

CONTEXT, SEQUENCES, PAGES = 48, 4, 12
GREEDY = Request(1, Sampling(temperature=0.0))
TOLERANCE: dict[DType, float] = {f32: 1e-5, f16: 4e-3, bf16: 3e-2, i8: 6e-2, f8e4m3fn: 0.2, f8e5m2: 0.4}


class Trial:
    """Parts of sequences of random pages, in a pool of anything."""

    def __init__(self, program: CompiledModel, vocabulary: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.vocabulary, self.program = vocabulary, program
        self.stepper = Stepper(program)
        per = CONTEXT // 16
        self.pages = self.rng.permutation(PAGES).reshape(SEQUENCES, per).tolist()
        for name, value in program.state().items():
            program.set_state({name: np.full_like(value, 100 if value.dtype == np.int8 else np.nan)})

    def part(self, slot: int, ids: list[int], start: int, *, is_chunk: bool, sampled: int = 1) -> SequencePart:
        transcript = Transcript(None, ids, GREEDY, CONTEXT, self.vocabulary)
        return SequencePart(slot, self.pages[slot], start, ids[start:], is_chunk, transcript, [None] * sampled)

    def companions(self, slots: list[int]) -> list[SequencePart]:
        parts: list[SequencePart] = []
        for slot in slots:
            ids = self.rng.integers(3, self.vocabulary, self.rng.integers(1, 30)).tolist()
            parts.append(self.part(slot, ids, 0, is_chunk=bool(self.rng.integers(2)), sampled=1))
        return parts


@pytest.fixture(scope="module", params=["gemma 3", "qwen 3 mixture", "lfm 2"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, CompiledModel]:
    net = model(*MODELS[request.param])
    language = network(net, tmp_path_factory.mktemp("model"), CONTEXT)
    form = CacheForm.paged(language.architecture, SEQUENCES, CONTEXT, PAGES)
    return net, compiled(step(language, form))


def reference(net: Any, ids: list[int]) -> np.ndarray:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return net(torch.tensor([ids])).logits[0].numpy()


def near(got: list[np.ndarray], expected: np.ndarray, tolerance: float = 1e-4) -> None:
    assert np.abs(np.stack(got) - expected).max() < tolerance * np.abs(expected).max()


def test_logits(tiny: tuple[Any, CompiledModel]) -> None:
    """Prompts in chunks, tokens one by one and several of a sequence in one step, beside each other."""
    net, program = tiny
    s = Trial(program, 61, 0)
    a, b = s.rng.integers(3, 61, 45).tolist(), s.rng.integers(3, 61, 20).tolist()
    s.stepper.run([s.part(0, a[:13], 0, is_chunk=True), s.part(2, b[:9], 0, is_chunk=True)])
    first, second = s.stepper.run(
        [s.part(0, a[:40], 13, is_chunk=True), s.part(2, b[:12], 9, is_chunk=False, sampled=3)]
    )
    near(first.logits, reference(net, a[:40])[-1:])
    near(second.logits, reference(net, b[:12])[-3:])
    rest = s.stepper.run([s.part(2, b, 12, is_chunk=False), s.part(0, a, 40, is_chunk=False, sampled=5)])
    near(rest[0].logits, reference(net, b)[-1:])
    near(rest[1].logits, reference(net, a)[-5:])
    assert rest[1].tokens == reference(net, a)[-5:].argmax(1).tolist()


def scenario(s: Trial, ids: list[int], slot: int, others: list[int], chunk_size: int) -> np.ndarray:
    """f32[tokens, vocabulary] behind a chunk of 11, a chunk of 1, and then so many tokens at a time."""
    got: list[np.ndarray] = []
    cuts = [0, 11, 12, *range(12 + chunk_size, 21, chunk_size), 20]
    for start, end in pairwise(cuts):
        if start == end:
            continue
        is_chunk = start < 12
        part = s.part(slot, ids[:end], start, is_chunk=is_chunk, sampled=1 if is_chunk else end - start)
        companions = s.companions(others)
        at = int(s.rng.integers(len(companions) + 1))
        got += s.stepper.run([*companions[:at], part, *companions[at:]])[at].logits
    return np.stack(got)


def check_bits(program: CompiledModel, vocabulary: int) -> None:
    ids = np.random.default_rng(3).integers(3, vocabulary, 20).tolist()
    single = scenario(Trial(program, vocabulary, 1), ids, 0, [], 1)
    assert np.isfinite(single).all()
    for seed in range(6):
        slot = seed % SEQUENCES
        others = [i for i in range(SEQUENCES) if i != slot][: seed % 3 + 1]
        among = scenario(Trial(program, vocabulary, seed + 2), ids, slot, others, seed % 3 + 1)
        assert np.array_equal(single, among), f"seed {seed}"


def test_bits_do_not_depend_on_other_sequences(tiny: tuple[Any, CompiledModel]) -> None:
    """Nor on their number, on pages, or on how many tokens of a sequence are checked at once."""
    check_bits(tiny[1], 61)


def test_calls_have_the_rows_of_one_kernel() -> None:
    assert FEW_ROWS == MAX_FEW_ROWS


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_bits_of_blocks_of_levels(activations: str) -> None:
    language = Network(from_config(CONFIG), InBlocks(), CONTEXT)
    graph = step(language, CacheForm.paged(language.architecture, SEQUENCES, CONTEXT, PAGES))
    program = build_program(graph, features_of("native"), 1, activations=activations)
    check_bits(CompiledModel(program, threads=1), 96)


@pytest.mark.parametrize(
    "dtype", [f16, i8, f8e4m3fn, *(pytest.param(t, marks=pytest.mark.slow) for t in (bf16, f8e5m2))]
)
def test_narrow_caches(dtype: DType, tmp_path: Path) -> None:
    net = model(*MODELS["gemma 3"])
    language = network(net, tmp_path, CONTEXT)
    s = Trial(compiled(step(language, CacheForm.paged(language.architecture, SEQUENCES, CONTEXT, PAGES, dtype))), 61, 0)
    ids = s.rng.integers(3, 61, 40).tolist()
    s.stepper.run([s.part(1, ids[:30], 0, is_chunk=True)])
    (got,) = s.stepper.run([s.part(1, ids, 30, is_chunk=False, sampled=10)])
    near(got.logits, reference(net, ids)[-10:], TOLERANCE[dtype])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [f32, f16, bf16, i8, f8e4m3fn])
def test_single_rows_read_pages_in_place(dtype: DType) -> None:
    """Chunks read copies. Pages that there are not are no memory outside of the pool."""
    language = Network(from_config(CONFIG), InBlocks(), CONTEXT)
    graph = step(language, CacheForm.paged(language.architecture, SEQUENCES, CONTEXT, PAGES, dtype))
    program = compiled(graph)
    labels = "\n".join(step.label or step.kernel for step in program.program.steps)
    loops = [loop.split() for loop in labels.split("\njump\n") if "attention" in loop]
    # besides the kernel that finds the page of a row
    copies = [sum("gather" in label and "remainder" not in label for label in loop) for loop in loops]
    assert copies == [0, 2]  # the second loop is that of chunks

    def run_pages() -> None:
        s = Trial(program, 96, 0)
        ids = s.rng.integers(3, 96, 40).tolist()
        for page in (1 << 50, -(1 << 50), PAGES, -PAGES - 1):
            s.pages = [[page, 1, page]] * SEQUENCES
            s.stepper.run([s.part(1, ids, 38, is_chunk=False), s.part(2, ids[:20], 0, is_chunk=True)])

    assert not failures({str(dtype): run_pages})


def test_pools() -> None:
    architecture = from_config(CONFIG)
    full_pool = pool(Steps(4), architecture, 40, f16)
    assert full_pool.pages == 4 * 3
    page = full_pool.nbytes // full_pool.pages
    assert page == 16 * 2 * 2 * 2 * 16  # tokens, keys and values, heads, bytes, width
    assert pool(Steps(4, page * 5 + 7), architecture, 40, f16).pages == 5
    assert pool(Steps(4, page * 500), architecture, 40, f16).pages == 12
    with pytest.raises(InputError, match="for a sequence of 40 tokens"):
        pool(Steps(4, page * 2), architecture, 40, f16)
    with pytest.raises(InputError, match="sequences"):
        Steps(0)


def test_prompts_are_cut_at_multiples() -> None:
    sequence = Running((0, 0), Answer(21), Transcript(None, [*range(21)], Request(9), CONTEXT, 61))
    sequence.computed = 16
    assert sequence.next_part(8).end == 21
    sequence.computed = 4
    part = sequence.next_part(8)
    assert (part.start, part.end, part.is_chunk, part.sampled) == (4, 8, True, 0)
    sequence.transcript.push([1, 2, 3])
    sequence.computed = 21
    part = sequence.next_part(2)
    assert (part.start, part.end, part.is_chunk, part.sampled) == (21, 23, False, 0)


def test_other_targets() -> None:
    """As far as a machine without them goes."""
    architecture = from_config(CONFIG)
    language = Network(architecture, InBlocks(), CONTEXT)
    for target in ("null:cuda:sm_90a", "null:cpu:x86-64-v3"):
        graph = step(language, CacheForm.paged(architecture, SEQUENCES, CONTEXT, PAGES, f16))
        program = build_program(graph, features_of(target), 1)
        assert not any(state.copy_reason for state in program.state), target
