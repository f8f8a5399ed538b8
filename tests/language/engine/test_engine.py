"""Many requests at once: the same tokens as one after another, whatever comes, goes, and has to wait."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.language.engine import Answer, BusyError, Engine, Stepper
from ingot.language.engine.engine import Limits
from ingot.language.session import Sampling
from ingot.language.text.generation import Request
from ingot.language.text.grammar import Grammars
from ingot.support.errors import IngotError, InputError
from tests.language.tiny import write

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

CONTEXT, PAGE_BYTES = 128, 16 * 2 * 2 * 2 * 8 * 2  # tokens, keys and values, layers, heads, width, bytes
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_ends": True}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_k": 30, "seed": 7, "max_tokens": 24, "ignore_ends": True}
PENALIZED: dict[str, Any] = {**SAMPLED, "repetition_penalty": 1.3, "frequency_penalty": 0.5}
PRINTABLE = {i: -1e4 for i in range(260) if not 32 <= i < 127}


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ingot.LanguageModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        file = write(tmp_path_factory.mktemp("model") / "tiny.gguf")
        yield ingot.LanguageModel(file, context=CONTEXT, threads=1)


@pytest.fixture(scope="module")
def engine(lm: ingot.LanguageModel) -> Iterator[Engine]:
    with lm.engine(sequences=3) as engine:
        yield engine


def prompts(count: int, longest: int = 90, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, rng.integers(1, longest)).tolist() for _ in range(count)]


def ids_of(answer: Answer) -> list[int]:
    return [token.id for piece in answer for token in piece.tokens]


def submit_all(
    lm: ingot.LanguageModel, engine: Engine, ids: Sequence[list[int]], how: dict[str, Any]
) -> list[list[int]]:
    return [ids_of(answer) for answer in [engine.submit(one, lm.request(**how)) for one in ids]]


@pytest.mark.parametrize("how", [GREEDY, SAMPLED, PENALIZED], ids=["greedy", "sampled", "penalized"])
def test_tokens_are_those_of_single_calls(lm: ingot.LanguageModel, engine: Engine, how: dict[str, Any]) -> None:
    """More requests than sequences; with penalties in a slot, then without."""
    ids = prompts(8)
    assert submit_all(lm, engine, ids, how) == [lm.generate(one, **how) for one in ids]
    s = engine.statistics()
    assert (s.running, s.waiting, s.pages_used) == (0, 0, 0)


def test_settings_of_each(lm: ingot.LanguageModel, engine: Engine) -> None:
    ids = prompts(1)[0]
    hows = [GREEDY, SAMPLED, PENALIZED, {**SAMPLED, "seed": 8}, {**GREEDY, "logit_bias": PRINTABLE}, GREEDY]
    answers = [engine.submit(ids, lm.request(**how)) for how in hows]
    assert [ids_of(answer) for answer in answers] == [lm.generate(ids, **how) for how in hows]


def test_the_youngest_is_put_back(lm: ingot.LanguageModel) -> None:
    """A pool for one sequence and a page: the same tokens, and all pages come back."""
    ids = prompts(10, seed=1)
    with lm.engine(sequences=3, cache_bytes=9 * PAGE_BYTES, prefill_chunk=16) as engine:
        for how in (GREEDY, PENALIZED):
            assert submit_all(lm, engine, ids, how) == [lm.generate(one, **how) for one in ids]
        s = engine.statistics()
    assert s.preemptions > 0 and s.pages == 9 and s.cache_bytes == 9 * PAGE_BYTES and s.pages_used == 0


def test_bits(lm: ingot.LanguageModel) -> None:
    """Logprobs are the same to the last bit: alone, among others, put back, from shared beginnings, checked at once."""
    ids = [[*range(48), *one] for one in prompts(8, 40, seed=3)]
    request = {**GREEDY, "logprobs": 0}

    def greedy_tokens(engine: Engine, ids: Sequence[list[int]]) -> list[list[tuple[int, float | None]]]:
        answers = [engine.submit(one, lm.request(**request)) for one in ids]
        return [[(token.id, token.logprob) for piece in answer for token in piece.tokens] for answer in answers]

    with lm.engine(sequences=3, prefill_chunk=16) as engine:
        single = [greedy_tokens(engine, [one])[0] for one in ids]
        assert greedy_tokens(engine, ids) == single
        assert engine.statistics().cached_tokens > 0
    tight: dict[str, Any] = {"sequences": 3, "prefill_chunk": 16, "cache_bytes": 10 * PAGE_BYTES}
    for options in (tight, {**tight, "draft": lm}):
        with lm.engine(**options) as engine:
            assert greedy_tokens(engine, ids) == single
            assert engine.statistics().preemptions > 0


def test_prompts_that_begin_alike(lm: ingot.LanguageModel) -> None:
    first, *others = [[*range(64), *suffix] for suffix in prompts(6, 20, seed=2)]
    with lm.engine(sequences=3, prefill_chunk=32) as engine:
        (got,) = submit_all(lm, engine, [first], GREEDY)
        answers = [engine.submit(one, lm.request(**GREEDY)) for one in others]
        assert [ids_of(answer) for answer in answers] == [lm.generate(one, **GREEDY) for one in others]
        assert got == lm.generate(first, **GREEDY)
        assert [answer.cached_tokens for answer in answers] == [64] * 5
        assert engine.statistics().cached_tokens == 5 * 64


def test_text_logprobs_and_stops(lm: ingot.LanguageModel, engine: Engine) -> None:
    how = {**GREEDY, "logit_bias": PRINTABLE, "logprobs": 3}
    text = lm.generate("Once", **how)
    stop = text.text[6:8]
    answers = [engine.submit(lm.tokenizer.encode("Once"), lm.request(**how, stop=s)) for s in (None, stop)]
    free, stopped = ([*answer] for answer in answers)
    assert "".join(piece.text for piece in free) == text.text
    facts = [token for piece in free for token in piece.tokens]
    assert [(t.id, t.text, [i for i, _ in t.top]) for t in facts] == [
        (t.id, t.text, [i for i, _ in t.top]) for t in text.tokens
    ]
    assert [t.logprob for t in facts] == pytest.approx(
        [t.logprob for t in text.tokens], abs=1e-3
    )  # keys are rounded to float16
    assert "".join(piece.text for piece in stopped) == text.text[: text.text.index(stop)]
    assert [answer.finish_reason for answer in answers] == ["length", "stop"]
    assert [answer.generated_tokens for answer in answers] == [24, len([t for piece in stopped for t in piece.tokens])]


def test_grammars_beside_free_answers(lm: ingot.LanguageModel, engine: Engine) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    ids = lm.tokenizer.encode("json")
    requests = [lm.request(schema=schema, temperature=1.0, seed=i, max_tokens=60) for i in range(4)]
    free = engine.submit(ids, lm.request(**SAMPLED))
    texts = ["".join(piece.text for piece in answer) for answer in [engine.submit(ids, r) for r in requests]]
    assert all(json.loads(text)["n"] in (1, 22) for text in texts)
    assert ids_of(free) == lm.generate(ids, **SAMPLED)


def test_cancelled_answers_free_their_pages(lm: ingot.LanguageModel, engine: Engine) -> None:
    how = {**GREEDY, "max_tokens": None}
    answers = [engine.submit(one, lm.request(**how)) for one in prompts(9, 60)]
    next(iter(answers[0]))
    for answer in answers:
        answer.cancel()
    assert {[*answer][-1].finish for answer in answers[1:]} <= {"cancelled", "length"}
    assert answers[-1].finish_reason == "cancelled" and answers[-1].generated_tokens == 0
    assert ids_of(engine.submit([5], lm.request(**GREEDY))) == lm.generate([5], **GREEDY)
    assert engine.statistics().pages_used == 0


def test_who_reads_no_more_cancels(lm: ingot.LanguageModel, engine: Engine) -> None:
    answer = engine.submit([1], lm.request(**{**GREEDY, "max_tokens": None}))
    reader = answer.until_left()
    next(reader)
    reader.close()
    assert answer.is_cancelled


def test_event_loops_wait_without_threads(lm: ingot.LanguageModel, engine: Engine) -> None:
    ids = prompts(6, 30)

    async def read(one: list[int]) -> list[int]:
        loop, wake, got = asyncio.get_running_loop(), asyncio.Event(), list[int]()
        answer = engine.submit(one, lm.request(**GREEDY))
        answer.subscribe(lambda: loop.call_soon_threadsafe(wake.set))
        while True:
            await wake.wait()
            wake.clear()
            for piece in answer.take():
                got += [token.id for token in piece.tokens]
                if piece.finish:
                    return got

    async def gather_all() -> list[list[int]]:
        return await asyncio.gather(*map(read, ids))

    assert asyncio.run(gather_all()) == [lm.generate(one, **GREEDY) for one in ids]


def test_a_callback_that_raises_cancels_its_answer_alone(lm: ingot.LanguageModel, engine: Engine) -> None:
    def raises() -> None:
        raise RuntimeError("Event loop is closed")

    answer = engine.submit([1], lm.request(**{**GREEDY, "max_tokens": None}))
    other = engine.submit([5], lm.request(**GREEDY))
    answer.subscribe(raises)
    assert [*answer][-1].finish == "cancelled"
    assert ids_of(other) == lm.generate([5], **GREEDY)


def test_threads_submit(lm: ingot.LanguageModel, engine: Engine) -> None:
    ids = prompts(12, 40, seed=4)
    got: dict[int, list[int]] = {}

    def ask(n: int) -> None:
        got[n] = ids_of(engine.submit(ids[n], lm.request(**GREEDY)))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[n] for n in range(12)] == [lm.generate(one, **GREEDY) for one in ids]


def test_refused(lm: ingot.LanguageModel) -> None:
    with lm.engine(sequences=1, queue=2) as engine:
        request = lm.request(**{**GREEDY, "max_tokens": None})
        with engine._changed:  # no request begins
            answers = [engine.submit([1], request) for _ in range(3)]
            with pytest.raises(BusyError, match="queue is full"):
                engine.submit([1], request)
        for ids, message in (([], "prompt"), ([1] * (CONTEXT + 1), "at most 128 tokens"), ([260], "token ids")):
            with pytest.raises(InputError, match=message):
                engine.submit(ids, request)
        with pytest.raises(InputError, match="logit_bias"):
            engine.submit([1], lm.request(logit_bias={999: 1.0}))
    assert [answer.finish_reason for answer in answers[1:]] == ["cancelled"] * 2
    with pytest.raises(BusyError, match="closed"):
        engine.submit([1], request)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"sequences": 0}, "sequences"), ({"prefill_chunk": 8}, "prefill_chunk"), ({"speculate": "luck"}, "speculate"),
        ({"cache_bytes": 100}, "cache_bytes"), ({"queue": -1}, "queue"), ({"proposals": 0}, "proposals"),
    ]  # fmt: skip
    for options, message in wrong:
        with pytest.raises(InputError, match=message):
            lm.engine(**options)


def test_a_queue_has_room_beside_free_sequences(lm: ingot.LanguageModel) -> None:
    request = lm.request(**GREEDY)
    with lm.engine(sequences=2, queue=0) as engine:
        with engine._changed:  # no request begins
            answers = [engine.submit([n], request) for n in range(2)]
            with pytest.raises(BusyError, match="the queue is full"):
                engine.submit([2], request)
        assert [ids_of(answer) for answer in answers] == [lm.generate([n], **GREEDY) for n in range(2)]


def test_requests_that_belong_together_are_taken_together(lm: ingot.LanguageModel) -> None:
    """Beyond the room of the queue, too: they would never fit."""
    request = lm.request(**GREEDY)
    with lm.engine(sequences=1, queue=1) as engine:
        with engine._changed:  # no request begins
            answers = engine.submit_all([([n], request) for n in range(5)])
            with pytest.raises(BusyError, match="the queue is full"):
                engine.submit([5], request)
        assert [ids_of(answer) for answer in answers] == [lm.generate([n], **GREEDY) for n in range(5)]
        with pytest.raises(InputError, match="the prompt"):
            engine.submit_all([([1], request), ([], request)])
        assert engine.statistics().requests == 5


def test_ends_of_the_context(lm: ingot.LanguageModel, engine: Engine) -> None:
    ids = prompts(1, 91)[0] * 10
    for length in (CONTEXT, CONTEXT - 1):
        got = engine.submit(ids[:length], lm.request(**{**GREEDY, "max_tokens": None}))
        assert ids_of(got) == lm.generate(ids[:length], **{**GREEDY, "max_tokens": None})
        assert got.finish_reason == "length" and got.generated_tokens == CONTEXT - length + 1
    assert [*engine.submit([1], lm.request(max_tokens=0))][-1].finish == "length"


class Failing:
    """A program that fails in its third call."""

    def __init__(self, program: Any) -> None:
        self.inputs, self.outputs, self._program, self._calls = program.inputs, program.outputs, program, 0

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        self._calls += 1
        if self._calls == 3:
            raise MemoryError("no room")
        return self._program.run(inputs)

    def set_state(self, values: dict[str, np.ndarray]) -> None: ...


def test_what_fails_is_told_and_others_go_on(lm: ingot.LanguageModel) -> None:
    stepper, facts = lm._stepper(2, None)
    engine = Engine(Stepper(Failing(stepper._program)), None, Limits(CONTEXT, int(facts["pages"]), 0, 64))
    request = Request(24, Sampling(temperature=0.0))
    failed, other = engine.submit([1], request), engine.submit([2], Request(1, Sampling(temperature=0.0)))
    with pytest.raises(IngotError, match="no room"):
        ids_of(failed)
    assert failed.is_finished and not failed.finish_reason
    assert len(ids_of(other)) == 1
    assert ids_of(engine.submit([5], request)) == lm.generate([5], **GREEDY)
    assert engine.statistics().pages_used == 0
    engine.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_an_error(value: float, tmp_path: Path) -> None:
    """Not an answer of some tokens, nor an error about the grammar of the request."""
    delta = np.zeros((260, 32), np.float32)
    delta[70] = value  # times numbers of both signs
    broken = ingot.LanguageModel(write(tmp_path / "m.gguf", added={"output.weight": delta}), context=64, threads=1)
    with broken.engine(sequences=2) as engine:
        for options in ({"temperature": 0}, {"temperature": 1}, {"logprobs": 2}, {"schema": True}):
            how: dict[str, Any] = {"max_tokens": 4, **options}
            answers = [engine.submit([1, 2], broken.request(**how)) for _ in range(2)]
            for answer in answers:
                with pytest.raises(IngotError, match="logits after 2 tokens: expected finite numbers"):
                    ids_of(answer)
            with pytest.raises(IngotError, match="logits after 2 tokens"):
                broken.generate([1, 2], **how)
        assert engine.statistics().pages_used == 0


def test_logits_after_rejected_proposals_do_not_matter(lm: ingot.LanguageModel, tmp_path: Path) -> None:
    prompt = [5, 6, 7]
    ids = lm.generate(prompt, **GREEDY)
    delta = np.full((260, 32), np.nan, np.float32)
    delta[[*prompt, *ids]] = 0
    broken = ingot.LanguageModel(write(tmp_path / "m.gguf", added={"token_embd.weight": delta}), threads=1)
    draft = ingot.LanguageModel(write(tmp_path / "draft.gguf", seed=1), threads=1)
    with broken.engine(sequences=1, draft=draft) as engine:
        assert ids_of(engine.submit(prompt, broken.request(**GREEDY))) == ids
        assert engine.statistics().proposed_tokens > engine.statistics().accepted_tokens


# --- through LanguageModel


def test_lists_of_prompts(lm: ingot.LanguageModel) -> None:
    ids = prompts(5, 30)
    assert lm.generate(ids, **GREEDY) == [lm.generate(one, **GREEDY) for one in ids]
    texts = ["a b", "Once upon"]
    how = {**GREEDY, "logit_bias": PRINTABLE}
    assert lm.generate(texts, **how) == [lm.generate(text, **how) for text in texts]
    results = lm.generate(texts, **how, logprobs=1)
    assert [len(result.tokens) for result in results] == [24, 24]
    for prompt, message in ((["a", [1]], "both"), (["a", "b"], "one prompt")):
        with pytest.raises(InputError, match=message):
            lm.generate(prompt, **GREEDY, stream=message == "one prompt")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["prompt", "draft", "another"])
def test_speculation(lm: ingot.LanguageModel, kind: str, tmp_path: Path) -> None:
    """The very tokens, whatever the proposals are."""
    ids = [*prompts(5, 40, seed=5), [7, 8, 9, 10] * 12]
    other = (
        lm if kind == "draft" else ingot.LanguageModel(write(tmp_path / "other.gguf", seed=1), context=64, threads=1)
    )
    options: dict[str, Any] = {"speculate": "prompt"} if kind == "prompt" else {"draft": other}
    with lm.engine(sequences=3, **options) as engine:
        for how in (GREEDY, SAMPLED, PENALIZED):
            assert submit_all(lm, engine, ids, how) == [lm.generate(one, **how) for one in ids]
        s = engine.statistics()
        assert s.proposed_tokens > 0 and s.pages_used == 0
        if kind == "draft":  # it is the model itself
            assert s.accepted_tokens == s.proposed_tokens
    with pytest.raises(InputError, match="speculate, draft"):
        lm.engine(speculate="prompt", draft=other)


def schema_of(n: int) -> dict[str, Any]:
    words = {"enum": ["a" * 12, "a" * 11 + "b", "b" * 9]}
    properties = {key: words for key in "xyz"[:n]}
    closed = {"additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
    return {"type": "object", "properties": properties, "required": [*properties], **closed}


@pytest.mark.parametrize("kind", ["prompt", "draft"])
def test_speculation_with_grammars(lm: ingot.LanguageModel, kind: str) -> None:
    """The same tokens as without proposals, with penalties too; what a grammar does not allow is not proposed."""
    pytest.importorskip("llguidance")
    ids = lm.tokenizer.encode('{"x":"aaaaaaaaaaaa","y":"aaa')
    hows: list[dict[str, Any]] = [
        {"temperature": t, "seed": n, "max_tokens": 70 if n else 20, "frequency_penalty": 0.3 * n}
        for n, t in enumerate((0, 1.0, 0.7))
    ]

    def texts(engine: Engine) -> list[str]:
        requests = [lm.request(schema=schema_of(n + 1), **how) for n, how in enumerate(hows)]
        requests += [lm.request(regex="(ab|ac)*", **how) for how in hows]
        return ["".join(piece.text for piece in a) for a in [engine.submit(ids, r) for r in requests]]

    options: dict[str, Any] = {"speculate": "prompt"} if kind == "prompt" else {"draft": lm}
    with lm.engine(sequences=3) as plain, lm.engine(sequences=3, proposals=5, **options) as engine:
        expected = texts(plain)
        assert json.loads(expected[2]).keys() == {"x", "y", "z"}
        assert texts(engine) == expected
        s, without = engine.statistics(), plain.statistics()
    assert s.accepted_tokens > 20 and s.steps < without.steps and s.pages_used == 0
    if kind == "draft":  # it is the model itself
        assert s.accepted_tokens == s.proposed_tokens


def test_what_a_grammar_forces_is_proposed(lm: ingot.LanguageModel) -> None:
    """There is one token for each byte here, so that all of it is right."""
    pytest.importorskip("llguidance")
    with lm.engine(sequences=1, speculate="prompt", proposals=8) as engine:
        answer = engine.submit([1], lm.request(regex="an answer without a choice[ab]", max_tokens=40))
        assert "".join(piece.text for piece in answer)[:-1] == "an answer without a choice"
        s = engine.statistics()
    assert s.accepted_tokens == s.proposed_tokens > 12 and s.steps < 13


def test_masks_of_proposals(lm: ingot.LanguageModel) -> None:
    """The masks that the answer has after each of them; then the state is that of before."""
    pytest.importorskip("llguidance")
    words = lm.tokenizer
    constraint = Grammars(words, 260).constraint(regex="abc?")
    a, b, c = words.encode("abc", framed=False)
    for proposed, count in (
        ([], 1),
        ([a, b], 3),
        ([a, b, c, a], 3),
        ([b], 1),
        ([a, c], 2),
        ([a, b, words.end_ids[0]], 3),
    ):
        masks = constraint.biases(proposed)
        assert len(masks) == count and not constraint.is_done
        allowed = [{*np.flatnonzero(mask == 0).tolist()} for mask in masks]
        assert allowed == [{a}, {b}, {c, *words.end_ids}][:count]
    constraint.accept(a)
    assert len(constraint.biases([b])) == 2 and not constraint.is_done


def test_a_draft_reads_few_tokens_one_by_one(lm: ingot.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """After proposals that were all accepted it has to read two, for which a chunk is padded to more."""
    parts, run = list[Any](), Stepper.run
    monkeypatch.setattr(Stepper, "run", lambda self, these: (parts.extend(these), run(self, these))[1])
    with lm.engine(sequences=1, draft=lm) as engine:
        ids = prompts(1)[0]
        assert ids_of(engine.submit(ids, lm.request(**GREEDY))) == lm.generate(ids, **GREEDY)
    later = [part for part in parts if part.start >= len(ids)]
    assert not any(part.is_chunk for part in later) and {len(part.ids) for part in later} >= {1, 2}


def test_repeated_text_is_looked_up(lm: ingot.LanguageModel) -> None:
    """Tokens that a bias forces into a circle are found."""
    how = {**GREEDY, "max_tokens": 60, "logit_bias": {i: -1e4 for i in range(260) if i != 65}}
    with lm.engine(sequences=1, speculate="prompt", proposals=6) as engine:
        assert submit_all(lm, engine, [[65, 65]], how) == [[65] * 60]
        s = engine.statistics()
    assert s.accepted_tokens > 40 and s.steps < 20


def test_models_of_several_sequences(lm: ingot.LanguageModel, tmp_path: Path) -> None:
    """Compiled, saved and loaded: one program, with the engine behind every call."""
    batched = ingot.LanguageModel(write(tmp_path / "tiny.gguf"), context=CONTEXT, threads=1, sequences=2)
    batched.save(tmp_path / "tiny.ingot")
    loaded = ingot.load(tmp_path / "tiny.ingot")
    ids = prompts(3, 40)
    for model in (batched, loaded):
        assert model.generate(ids, **GREEDY) == lm.generate(ids, **GREEDY)
        assert model.generate(ids[0], **SAMPLED) == lm.generate(ids[0], **SAMPLED)
        assert [*model.generate(ids[0], **GREEDY, stream=True)] == lm.generate(ids[0], **GREEDY)
    assert batched.score([1, 2, 3]).total == pytest.approx(lm.score([1, 2, 3]).total, abs=1e-4)
    with pytest.raises(InputError, match="saved model"):
        loaded.engine(sequences=5)
    assert loaded.score([1, 2, 3]).total == batched.score([1, 2, 3]).total


@pytest.mark.slow
def test_threads(lm: ingot.LanguageModel, tmp_path: Path) -> None:
    ids = prompts(6)
    with ingot.LanguageModel(write(tmp_path / "tiny.gguf"), context=CONTEXT, threads=2).engine(sequences=3) as engine:
        assert submit_all(lm, engine, ids, SAMPLED) == [lm.generate(one, **SAMPLED) for one in ids]


@pytest.mark.slow
def test_hundreds_of_requests(lm: ingot.LanguageModel) -> None:
    """Random lengths, settings and cancellations in a pool that is too small: memory stays, answers are right."""
    rng = np.random.default_rng(0)
    ids, hows = prompts(300, 100, seed=6), [GREEDY, SAMPLED, PENALIZED]
    with lm.engine(sequences=6, cache_bytes=20 * PAGE_BYTES, queue=300, prefill_chunk=16) as engine:
        answers = [
            engine.submit(one, lm.request(**{**hows[n % 3], "max_tokens": int(rng.integers(1, 40))}))
            for n, one in enumerate(ids)
        ]
        for n in rng.permutation(300)[:60]:
            answers[n].cancel()
        got = [ids_of(answer) for answer in answers]
        s = engine.statistics()
        assert s.preemptions > 20 and s.pages_used == 0 and s.pages == 20
        for n in range(0, 300, 10):
            expected = lm.generate(ids[n], **{**hows[n % 3], "max_tokens": 40})
            assert got[n] == expected[: len(got[n])]
            assert answers[n].finish_reason in ("length", "cancelled")


def test_speculation_in_a_pool_that_is_too_small(lm: ingot.LanguageModel) -> None:
    ids = prompts(8, seed=8)
    with lm.engine(sequences=3, cache_bytes=9 * PAGE_BYTES, draft=lm, prefill_chunk=16) as engine:
        assert submit_all(lm, engine, ids, GREEDY) == [lm.generate(one, **GREEDY) for one in ids]
        s = engine.statistics()
    assert s.preemptions > 0 and s.accepted_tokens == s.proposed_tokens > 0 and s.pages_used == 0
