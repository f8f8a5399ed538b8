"""Parts of the engine's answers as OpenAI's objects: complete ones, and chunks of a stream.

async for choice, delta in deltas(choices): ...        as they come, from several concurrent answers
Form(...).chunk(choice, delta);  Form(...).response(choices, joined deltas)
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ingot import __version__
from ingot.language.engine import Answer, BusyError
from ingot.language.text.generation import AnswerPart, StopSearch, Token
from ingot.language.text.tokenizer import Tokenizer
from ingot.serving.openai.call_reader import CallPart, CallReader
from ingot.serving.openai.metrics import Pace
from ingot.serving.openai.model import Prompt
from ingot.serving.openai.reasoning import ReasoningReader
from ingot.support.dataclass import dataclass

_IMPOSSIBLE = -9999.0


@dataclass(frozen=True)
class Delta:
    """reasoning: the model's thoughts before its answer. finish: in the last delta of a choice, else ""."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    tokens: tuple[Token, ...] = ()
    finish: str = ""

    @staticmethod
    def join(parts: Sequence[Delta]) -> Delta:
        """The concatenation, with complete calls."""
        calls: dict[int, CallPart] = {}
        for call in (call for part in parts for call in part.calls):
            first = calls.setdefault(call.index, replace(call, arguments=""))
            calls[call.index] = replace(first, arguments=first.arguments + call.arguments)
        tokens = tuple(token for part in parts for token in part.tokens)
        content, reasoning = ("".join(texts) for texts in zip(*((p.content, p.reasoning) for p in parts), strict=True))
        return Delta(content, reasoning, tuple(calls.values()), tokens, parts[-1].finish)


class Choice:
    """One answer to a request. offset: the number of characters of its text before the next delta."""

    def __init__(
        self, index: int, answer: Answer, prompt: Prompt, tokenizer: Tokenizer, pace: Pace, stop: Sequence[str] = ()
    ) -> None:
        self.index, self.answer, self.prompt, self.tokenizer = index, answer, prompt, tokenizer
        self.offset = 0
        self._pace, self._thoughts, self._calls = pace, None, None
        if prompt.reasoning is not None:
            self._thoughts = ReasoningReader(prompt.reasoning, is_begun=prompt.is_thinking)
        if prompt.calls is not None:
            self._calls = CallReader(prompt.calls, prompt.tools, is_guarded="grammar" in prompt.constraint)
        if self._thoughts or self._calls:
            # thoughts and calls may be delimited by special tokens, which have no text in an answer
            self._stream, self._search = tokenizer.stream(prompt.ids, special=True), StopSearch(stop)

    def read(self, piece: AnswerPart) -> Delta:
        self._pace.tokens(len(piece.tokens))
        if piece.finish == "cancelled":
            raise BusyError("the server shuts down")
        if not self._thoughts and not self._calls:
            return Delta(piece.text, tokens=piece.tokens, finish=piece.finish)
        finish = piece.finish
        text, _ = self._search.push(self._stream.push([token.id for token in piece.tokens]))
        if finish and not self._search.is_found:
            more_text, is_found = self._search.push(self._stream.finish())
            text += more_text + ("" if is_found else self._search.finish())
        reasoning, content = self._thoughts.push(text) if self._thoughts else ("", text)
        if finish and self._thoughts:
            rest, more_text = self._thoughts.finish()
            reasoning, content = reasoning + rest, content + more_text
        calls: list[CallPart] = []
        if self._calls:
            content, calls = self._calls.push(content)
            if finish:
                rest, more_calls = self._calls.finish()
                content, calls = content + rest, calls + more_calls
                finish = "tool_calls" if self._calls.has_calls and finish == "stop" else finish
        return Delta(content, reasoning, tuple(calls), piece.tokens, finish)


async def deltas(choices: Sequence[Choice]) -> AsyncIterator[tuple[Choice, Delta]]:
    """The deltas of all choices as they come. Raises the engine's error."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(changed.set)

    for choice in choices:
        choice.answer.subscribe(wake)
    running = [*choices]
    while running:
        await changed.wait()
        changed.clear()
        for choice in [*running]:
            while pieces := choice.answer.take():  # again, as an error behind the last one may not wake any more
                for piece in pieces:
                    yield choice, choice.read(piece)
                    if piece.finish:
                        running.remove(choice)


class Form:
    """Builds the objects of one response. has_logprobs: whether the request asks for logprobs."""

    def __init__(self, model: str, *, is_chat: bool, has_logprobs: bool, includes_usage: bool = False) -> None:
        self._is_chat, self._has_logprobs, self._includes_usage = is_chat, has_logprobs, includes_usage
        prefix = "chatcmpl" if is_chat else "cmpl"
        self._head = {"id": f"{prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model,
                      "system_fingerprint": f"ingot-{__version__}"}  # fmt: skip

    def opening(self, choice: Choice) -> dict[str, Any]:
        """The first chunk of a chat's stream."""
        return self._chunk([self._choice(choice, {"delta": {"role": "assistant", "content": ""}}, Delta())])

    def chunk(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        content: dict[str, Any] = {"text": delta.content}
        if self._is_chat:
            calls = [{"index": call.index, **_call(call)} for call in delta.calls]
            parts = {"reasoning_content": delta.reasoning, "content": delta.content, "tool_calls": calls}
            content = {"delta": {name: part for name, part in parts.items() if part}}
        return self._chunk([self._choice(choice, content, delta)])

    def is_told(self, delta: Delta) -> bool:
        """Whether a chunk for the delta would have any content."""
        is_said = delta.content or delta.reasoning or delta.calls or delta.finish
        return bool(is_said or (self._has_logprobs and delta.tokens))

    def usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The last chunk of a stream."""
        return {**self._chunk([]), "usage": usage(choices)}

    def response(self, choices: Sequence[Choice], merged_deltas: Sequence[Delta]) -> dict[str, Any]:
        entries: list[dict[str, Any]] = []
        for choice, delta in zip(choices, merged_deltas, strict=True):
            content_fields: dict[str, Any] = {"text": delta.content}
            if self._is_chat:
                calls = {"tool_calls": [_call(call) for call in delta.calls]} if delta.calls else {}
                thought = {"reasoning_content": delta.reasoning} if delta.reasoning else {}
                content = None if delta.calls and not delta.content else delta.content
                content_fields = {
                    "message": {"role": "assistant", "content": content, "refusal": None, **thought, **calls}
                }
            entries.append(self._choice(choice, content_fields, delta))
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": entries, "usage": usage(choices)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, **({"usage": None} if self._includes_usage else {})}

    def _choice(self, choice: Choice, content: dict[str, Any], delta: Delta) -> dict[str, Any]:
        logprobs = None
        if self._has_logprobs and self._is_chat:
            logprobs = {"content": [_entry(choice.tokenizer, token) for token in delta.tokens], "refusal": None}
        elif self._has_logprobs:
            logprobs = _columns(choice, delta.tokens)
        return {"index": choice.index, **content, "logprobs": logprobs, "finish_reason": delta.finish or None}


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """The counts of tokens. A prompt counts once, regardless of the number of its answers."""
    prompts = {id(choice.prompt): choice.answer for choice in choices}.values()
    prompt, generated = sum(a.prompt_tokens for a in prompts), sum(c.answer.generated_tokens for c in choices)
    cached = sum(a.cached_tokens for a in prompts)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip


def _call(call: CallPart) -> dict[str, Any]:
    """A part of a call; the first one has its name and id."""
    if not call.name:
        return {"function": {"arguments": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _entry(tokenizer: Tokenizer, token: Token) -> dict[str, Any]:
    """A token of a chat with its alternatives."""
    pairs = [(token.id, token.logprob), *token.top]
    entries = [
        {"token": tokenizer.token(i), "logprob": _finite(value), "bytes": [*tokenizer.token_bytes(i)]}
        for i, value in pairs
    ]
    return {**entries[0], "top_logprobs": entries[1:]}


def _columns(choice: Choice, tokens: Sequence[Token]) -> dict[str, Any]:
    """The tokens of a completion, in columns. text_offset: the start of each token in the text."""
    name: Callable[[int], str] = choice.tokenizer.token
    texts, offsets = [name(token.id) for token in tokens], list[int]()
    for text in texts:
        offsets.append(choice.offset)
        choice.offset += len(text)
    top = [{name(i): _finite(value) for i, value in token.top} for token in tokens]
    return {"tokens": texts, "token_logprobs": [_finite(t.logprob) for t in tokens], "top_logprobs": top,
            "text_offset": offsets}  # fmt: skip


def _finite(logprob: float | None) -> float | None:
    """JSON has no infinity: the logprob of an impossible token is OpenAI's."""
    return None if logprob is None else max(logprob, _IMPOSSIBLE)
