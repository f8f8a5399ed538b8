"""Continuous batching: requests join and leave between the steps of a program.

    each step:  a token (and proposals to follow it) of each running answer, and a chunk of a prompt

Keys and values are in pages of a pool. If there are too few pages, the youngest request is preempted: it goes back to
the queue and is recomputed later. The bits of an answer do not depend on the other requests in its steps.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Sequence

from ingot.language.engine.answer import CANCELLED, Answer, BusyError
from ingot.language.engine.pages import Pages
from ingot.language.engine.paging import PAGE, page_count
from ingot.language.engine.sequence import Running, Sampled, SequencePart
from ingot.language.engine.speculation import Speculator
from ingot.language.engine.stepper import Stepper
from ingot.language.text.arguments import check_ids
from ingot.language.text.generation import Request, Transcript
from ingot.language.text.tokenizer import Tokenizer
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError, InputError


@dataclass(frozen=True)
class Statistics:
    """running, waiting: the current requests. pages_used: the pages that they have, of PAGE tokens each. All other
    counts are since the start. prompt_tokens: computed; cached_tokens: reused. proposed_tokens: by speculation, of
    which accepted_tokens were correct."""

    running: int
    waiting: int
    pages_used: int
    pages: int
    cache_bytes: int
    steps: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    proposed_tokens: int
    accepted_tokens: int


@dataclass(frozen=True)
class Limits:
    """context: the maximum number of tokens of a sequence. pages, cache_bytes: the size of the pool. chunk: rows of a
    prompt in a step, a multiple of the page size. queue: the maximum number of requests beyond free sequences that
    wait. proposals: the maximum number of proposed tokens of a sequence. shares_prefixes: whether common prefixes of
    prompts are computed once."""

    context: int
    pages: int
    cache_bytes: int
    chunk: int
    queue: int = 64
    proposals: int = 0
    shares_prefixes: bool = True


class Engine:
    """Answers requests on its own thread. vocabulary: the number of token ids."""

    def __init__(
        self, stepper: Stepper, tokenizer: Tokenizer | None, limits: Limits, speculator: Speculator | None = None
    ) -> None:
        self._stepper, self._tokenizer, self._limits, self._speculator = stepper, tokenizer, limits, speculator
        self.vocabulary = stepper.vocabulary
        self._pages = Pages(limits.pages)
        self._slots = [*range(stepper.sequences)][::-1]
        self._waiting, self._running = list[Running](), list[Running]()  # by order
        self._counts: dict[str, int] = dict.fromkeys(
            ("steps", "requests", "prompt_tokens", "cached_tokens", "generated_tokens", "preemptions",
             "proposed_tokens", "accepted_tokens"), 0,
        )  # fmt: skip
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="ingot-engine", daemon=True)
        self._thread.start()

    def submit(self, prompt: Sequence[int], request: Request, *, priority: int = 0) -> Answer:
        """Queue a request; smaller priorities go first. Raises BusyError if the queue is full or the engine is closed,
        InputError for an invalid prompt or one that exceeds the context."""
        return self.submit_all([(prompt, request)], priority=priority)[0]

    def submit_all(self, requests: Sequence[tuple[Sequence[int], Request]], *, priority: int = 0) -> list[Answer]:
        """Queue prompts with their requests, all or none. As a caller can't divide them, a queue with room for the
        first one takes all. The rest is as in `submit`."""
        transcripts = [self._transcript(prompt, request) for prompt, request in requests]
        answers = [Answer(transcript.prompt) for transcript in transcripts]
        with self._changed:
            if self._is_closed:
                raise BusyError("the engine is closed")
            if len(self._waiting) >= self._limits.queue + len(self._slots):
                raise BusyError("the queue is full", got=f"{len(self._waiting)} waiting requests", fix="try later")
            for answer, transcript in zip(answers, transcripts, strict=True):
                self._counts["requests"] += 1
                if transcript.left > 0:
                    insort(self._waiting, Running((priority, self._counts["requests"]), answer, transcript), key=_order)
            self._changed.notify_all()
        for answer, transcript in zip(answers, transcripts, strict=True):
            if transcript.left <= 0:
                answer.put(transcript.end("length"))
        return answers

    def _transcript(self, prompt: Sequence[int], request: Request) -> Transcript:
        ids = [*prompt]
        if not ids:
            raise InputError("the prompt", expected="one token or more", got="none")
        check_ids(ids, self.vocabulary)
        if len(ids) > self._limits.context:
            raise InputError("the prompt", expected=f"at most {self._limits.context} tokens", got=len(ids))
        return Transcript(self._tokenizer, ids, request, self._limits.context, self.vocabulary)

    def statistics(self) -> Statistics:
        with self._changed:
            return Statistics(
                len(self._running), len(self._waiting), self._pages.used, self._pages.total, self._limits.cache_bytes,
                **self._counts,
            )  # fmt: skip

    def close(self) -> None:
        """Cancel all requests, refuse new ones, and end the thread."""
        with self._changed:
            self._is_closed = True
            for sequence in (*self._running, *self._waiting):
                sequence.answer.cancel()
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- on the engine's thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._running or self._is_closed)
                if not self._waiting and not self._running:
                    return
            try:
                self._step()
            except Exception as error:  # of the program: waiting requests may still succeed
                with self._changed:
                    failed = [*self._running] or self._waiting[:1]
                for sequence in failed:
                    self._fail(sequence, error)

    def _fail(self, sequence: Running, error: Exception) -> None:
        if sequence.slot < 0:
            with self._changed:
                self._waiting.remove(sequence)
        else:
            self._retire(sequence)
        sequence.answer.fail(error if isinstance(error, IngotError) else IngotError(f"the engine failed: {error!r}"))

    def _step(self) -> None:
        self._drop_cancelled()
        with self._changed:
            self._admit()
        parts = self._plan(self._proposed())
        if not parts:
            return
        results = self._stepper.run([part for _, part in parts])
        for (sequence, part), sampled in zip(parts, results, strict=True):
            try:
                self._deliver(sequence, part, sampled)
            except Exception as error:  # of a grammar
                self._fail(sequence, error)
        self._counts["steps"] += 1

    def _drop_cancelled(self) -> None:
        with self._changed:
            waiting = [s for s in self._waiting if s.answer.is_cancelled]
            self._waiting = [s for s in self._waiting if not s.answer.is_cancelled]
        running = [s for s in self._running if s.answer.is_cancelled]
        for sequence in running:
            self._retire(sequence)
        for sequence in (*waiting, *running):
            sequence.answer.put(sequence.transcript.end(CANCELLED))

    def _admit(self) -> None:
        """Give slots to waiting requests while there are pages for their tokens so far."""
        reserved_pages = sum(page_count(len(s.ids) + 1) - len(s.pages) for s in self._running)
        while self._waiting and self._slots:
            sequence = self._waiting[0]
            if self._limits.shares_prefixes:
                pages_per_chunk = self._limits.chunk // PAGE
                # the last token of a prompt is always read, as its logits are needed
                max_pages = (sequence.transcript.prompt - 1) // self._limits.chunk * pages_per_chunk
                shared_pages = self._pages.find(sequence.ids, max_pages)
                usable_count = len(shared_pages) // pages_per_chunk * pages_per_chunk
                self._pages.release(shared_pages[usable_count:])
                sequence.pages, sequence.computed = shared_pages[:usable_count], usable_count * PAGE
            needed_pages = page_count(len(sequence.ids) + 1) - len(sequence.pages)
            if self._running and needed_pages + reserved_pages > self._pages.available:
                self._pages.release(sequence.pages)
                sequence.pages, sequence.computed = [], 0
                return
            reserved_pages += needed_pages
            if not sequence.answer.generated_tokens:
                sequence.answer.cached_tokens = sequence.computed
            self._counts["cached_tokens"] += sequence.computed
            sequence.slot = self._slots.pop()
            insort(self._running, self._waiting.pop(0), key=_order)

    def _proposed(self) -> dict[Running, list[int]]:
        if self._speculator is None:
            return {}
        limits = {
            s: min(s.proposals, self._limits.proposals, s.transcript.left - 1, self._limits.context - len(s.ids))
            for s in self._running
            if s.is_decoding
        }
        return self._speculator.propose({s: limit for s, limit in limits.items() if limit > 0})

    def _plan(self, proposed: dict[Running, list[int]]) -> list[tuple[Running, SequencePart]]:
        """The parts of the next step, the oldest first. Proposals for which there is no page are dropped."""
        parts: list[tuple[Running, SequencePart]] = []
        budget = self._limits.chunk
        for sequence in [*self._running]:
            if sequence.slot < 0:  # preempted
                continue
            end = len(sequence.ids) + len(proposed.get(sequence, ()))
            if page_count(end) - len(sequence.pages) > self._pages.available:
                proposed.pop(sequence, None)
            try:
                part = sequence.next_part(self._limits.chunk, proposed.get(sequence, ()))
            except Exception as error:
                self._fail(sequence, error)
                continue
            if not sequence.is_decoding:
                if len(part.ids) > budget:
                    continue
                budget -= len(part.ids)
            if self._extend(sequence, part.end):
                parts.append((sequence, part))
        return parts

    def _extend(self, sequence: Running, end: int) -> bool:
        """Get pages for a sequence's first `end` tokens, preempting the youngest. Returns False if that is itself."""
        while (pages := self._pages.take(max(page_count(end) - len(sequence.pages), 0))) is None:
            youngest = self._running[-1]
            self._put_back(youngest)
            if youngest is sequence:
                return False
        sequence.pages += pages
        return True

    def _put_back(self, sequence: Running) -> None:
        self._counts["preemptions"] += 1
        self._retire(sequence)
        with self._changed:
            insort(self._waiting, sequence, key=_order)

    def _retire(self, sequence: Running) -> None:
        """Release a sequence's slot and its pages."""
        with self._changed:
            self._running.remove(sequence)
        self._pages.release(sequence.pages)
        if self._speculator is not None:
            self._speculator.forget(sequence)
        self._slots.append(sequence.slot)
        sequence.pages, sequence.computed, sequence.slot = [], 0, -1

    def _deliver(self, sequence: Running, part: SequencePart, sampled: Sampled) -> None:
        accepted, proposed = 0, part.proposed
        while accepted < len(proposed) and sampled.tokens[accepted] == proposed[accepted]:
            accepted += 1
        sequence.computed = part.end - len(proposed) + accepted
        if part.is_chunk:
            self._counts["prompt_tokens"] += len(part.ids)
            if self._limits.shares_prefixes and not part.end % self._limits.chunk:
                self._pages.keep(sequence.pages, sequence.ids, part.end // PAGE)
        if not part.sampled:
            return
        if proposed:
            sequence.proposals = (
                min(2 * accepted, self._limits.proposals) if accepted == len(proposed) else max(accepted, 1)
            )
        self._counts["proposed_tokens"] += len(proposed)
        self._counts["accepted_tokens"] += accepted
        piece = sequence.transcript.push(sampled.tokens[: accepted + 1], sampled.logits)
        self._counts["generated_tokens"] += len(piece.tokens)
        if piece.finish:
            self._retire(sequence)
        if piece.finish or piece.tokens:
            sequence.answer.put(piece)


def _order(sequence: Running) -> tuple[int, int]:
    return sequence.order


__all__ = ["Engine", "Limits", "Statistics"]
