"""A served language model: requests as prompts of ids, its engine, and embeddings."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.api.language_model import LanguageModel
from ingot.language.engine import Answer
from ingot.serving.openai.calls import CallForm, call_form
from ingot.serving.openai.errors import OpenAIError
from ingot.serving.openai.grammars import calls_grammar, thoughtful_grammar
from ingot.serving.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    JsonFormat,
    Message,
    NamedTool,
    SchemaFormat,
    Tool,
)
from ingot.serving.openai.reasoning import Reasoning, reasoning_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError

_COMPLETION_TOKENS = 16  # OpenAI's default for completions
_OBJECT = {"type": "object"}
_CHARACTERS = 16  # for each token of the context, of a text that is encoded as a whole


@dataclass(frozen=True)
class Prompt:
    """ids: of the prompt. constraint: of the answer, as arguments of `LanguageModel.request`. calls: the form of calls
    of `tools`; None: they are not parsed. reasoning: the marks of thoughts; None: they are not separated. is_thinking:
    whether the prompt has begun a thought."""

    ids: list[int]
    constraint: Mapping[str, Any]
    calls: CallForm | None = None
    tools: Sequence[Tool] = ()
    reasoning: Reasoning | None = None
    is_thinking: bool = False


class ServedLanguageModel:
    """sequences: the number of concurrent answers, by default the number that the model was compiled for. queue: the
    number of requests that may wait. A model for embeddings only has no engine.

    Raises ImportModelError for a model without a tokenizer, as answers are texts."""

    def __init__(self, name: str, model: LanguageModel, *, sequences: int | None = None, queue: int = 64) -> None:
        self.name, self.model, self.created = name, model, int(time.time())
        if not model.is_encoder:
            model.tokenizer  # noqa: B018  now, not at the first request
        self._engine = None if model.is_encoder else model.engine(sequences=sequences, queue=queue)
        self._template = threading.Lock()  # a template has a counter of its steps
        self._forms: dict[str | None, CallForm | OpenAIError] = {}
        self._thoughts: dict[str, Reasoning | None] = {}

    @property
    def engine(self):
        if self._engine is None:
            raise OpenAIError(400, f"{self.name} is an encoder: it has no next token", param="model",
                              fix="use /v1/embeddings")  # fmt: skip
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    # --- prompts

    def completion(self, request: CompletionRequest) -> list[Prompt]:
        self.engine  # noqa: B018  # raises before any error about the prompt
        return [Prompt(self._ids(p, "prompt"), {}) for p in request.prompts]

    def chat(self, request: ChatRequest) -> Prompt:
        self.engine  # noqa: B018
        tools = [] if request.tool_choice == "none" else request.tools or []
        if isinstance(request.tool_choice, NamedTool):
            chosen = [tool for tool in tools if tool.function.name == request.tool_choice.function.name]
        else:
            chosen = tools
        messages = [_message(message, i) for i, message in enumerate(request.messages)]
        if any("tool_calls" in message for message in messages):
            messages = self._with_calls(messages)
        tool_objects = [tool.model_dump(exclude_none=True) for tool in tools]
        if tools and not (form := self._call_form()).lists_tools:
            messages = _with_instructions(messages, form.instructions(tool_objects))
        text = self._rendered(messages, tool_objects or None, **(request.chat_template_kwargs or {}))
        reasoning = None if request.reasoning_format == "none" else self._reasoning()
        is_thinking = reasoning is not None and reasoning.is_begun(text)
        calls, constraint = self._constraint(request, chosen, reasoning, is_thinking=is_thinking)
        ids = self._ids(text, "messages", framed=False)
        return Prompt(ids, constraint, calls, chosen, reasoning, is_thinking)

    def _constraint(
        self, request: ChatRequest, tools: Sequence[Tool], reasoning: Reasoning | None, *, is_thinking: bool
    ) -> tuple[CallForm | None, Mapping[str, Any]]:
        """(the form of calls, the constraint of the answer)."""
        schema, tokenizer = self._schema(request), self.model.tokenizer
        if tools:
            calls = self._call_form()
            is_required = request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool)
            grammar = calls_grammar(
                calls, tools, tokenizer, is_required=is_required, has_several=request.parallel_tool_calls,
                schema=schema, reasoning=reasoning, is_thinking=is_thinking,
            )  # fmt: skip
            return calls, {} if grammar is None else {"grammar": grammar}
        if schema is None:
            return None, {}
        if reasoning is not None and is_thinking:
            return None, {"grammar": thoughtful_grammar(reasoning, schema, tokenizer)}
        return None, {"schema": schema}

    def _rendered(self, messages: Any, tools: Any, **values: Any) -> str:
        with self._template:
            return self.model.prompt(messages, tools, **values)

    def _call_form(self) -> CallForm:
        source = self.model.template
        if source not in self._forms:
            try:
                self._forms[source] = call_form(self._rendered, self.model.tokenizer)
            except OpenAIError as error:
                self._forms[source] = error
        form = self._forms[source]
        if isinstance(form, OpenAIError):
            raise form
        return form

    def _reasoning(self) -> Reasoning | None:
        source = self.model.template or ""
        if source not in self._thoughts:
            self._thoughts[source] = reasoning_of(self._rendered, source)
        return self._thoughts[source]

    def _with_calls(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages with their calls as the template takes them: arguments as objects or text, or all in the content."""
        try:
            form = self._call_form()
        except OpenAIError:
            form = None
        if form is None or not form.takes_text:
            _read_arguments(messages)
        return messages if form is None or not form.in_content else [_in_content(form, m) for m in messages]

    def _schema(self, request: ChatRequest) -> Any:
        match request.response_format:
            case JsonFormat():
                return _OBJECT
            case SchemaFormat(json_schema=schema_format):
                return schema_format.schema_
            case _:
                return None

    def _ids(self, text: str | list[int], param: str, *, framed: bool = True) -> list[int]:
        """Raises OpenAIError (400) for ids that do not fit; see `_encoded`."""
        context = self.model.context
        ids = self._encoded(text, param, framed=framed) if isinstance(text, str) else text
        if len(ids) > context:
            raise self._too_long(len(ids), param)
        if not ids or not 0 <= min(ids) <= max(ids) < self.model.vocabulary:
            got = "none" if not ids else f"{min(ids)} to {max(ids)}"
            expected = f"one token id or more, from 0 to {self.model.vocabulary - 1}"
            raise OpenAIError(400, "the prompt", expected=expected, got=got, param=param)
        return ids

    def _encoded(self, text: str, param: str, *, framed: bool) -> list[int]:
        """Of a text far too long the beginning alone is encoded."""
        context, encode = self.model.context, self.model.tokenizer.encode
        beginning = text[: _CHARACTERS * context]
        # what follows the beginning may change its last tokens
        if len(beginning) < len(text) and len(encode(beginning, framed=framed)) > 2 * context:
            raise self._too_long(f"more than {2 * context}", param)
        return encode(text, framed=framed)

    def _too_long(self, got: int | str, param: str) -> OpenAIError:
        return OpenAIError(400, "the prompt", expected=f"at most {self.model.context} tokens", got=got,
                           fix="shorten it, or serve the model with a larger --context", param=param,
                           code="context_length_exceeded")  # fmt: skip

    # --- answers

    def submit(
        self,
        prompts: Sequence[Prompt],
        request: CompletionRequest | ChatRequest,
        max_tokens: int | None,
        logprobs: int | None,
    ) -> list[Answer]:
        """`request.choices` answers to each prompt, all or none. Raises BusyError, InputError."""
        options = request.sampling
        seeds = [None if request.seed is None else _wrapped(request.seed + i) for i in range(request.choices)]
        return self.engine.submit_all(
            [
                (prompt.ids, self.model.request(
                    max_tokens=max_tokens, seed=seed, logprobs=logprobs, **options, **prompt.constraint
                ))
                for prompt in prompts
                for seed in seeds
            ]
        )  # fmt: skip

    # --- embeddings

    def embedding_ids(self, texts: Sequence[str | list[int]]) -> list[list[int]]:
        return [self._ids(text, "input") for text in texts]

    def embed(self, ids: Sequence[int]) -> np.ndarray:
        """The embedding of a text: f32[width]. Raises IngotError for values that JSON does not have."""
        row = self.model.embed(ids)
        if not np.isfinite(row).all():
            raise IngotError("the embedding", expected="finite values", got="NaN or infinite ones",
                             fix="check the model's weights")  # fmt: skip
        return row


class LanguageModels:
    """The models of a server by name."""

    def __init__(self, models: Sequence[ServedLanguageModel]) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Iterator[ServedLanguageModel]:
        return iter(self._models.values())

    def find(self, name: str) -> ServedLanguageModel:
        """Raises OpenAIError (404)."""
        if name not in self._models:
            raise OpenAIError(404, f"model {name[:200]!r}", expected=f"one of {[*self._models]}", got="no such model",
                              param="model", code="model_not_found")  # fmt: skip
        return self._models[name]

    def close(self) -> None:
        for model in self:
            model.close()


def max_answer_tokens(request: CompletionRequest | ChatRequest) -> int | None:
    """The maximum number of tokens; None: until the model ends the answer or the context is full."""
    if isinstance(request, ChatRequest):
        return request.max_answer_tokens
    return _COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens


def _message(message: Message, index: int) -> dict[str, Any]:
    """A message for a chat template, as text only. Raises OpenAIError (400) for arguments of calls that are not
    objects."""
    role = "system" if message.role == "developer" else message.role
    fields: dict[str, Any] = {"role": role, "content": message.text}
    fields |= {name: value for name in ("name", "reasoning_content", "tool_call_id")
              if (value := getattr(message, name)) is not None}  # fmt: skip
    if message.tool_calls:
        fields["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        for call in fields["tool_calls"]:
            _arguments(call["function"]["arguments"], index)
    return fields


def _read_arguments(messages: Sequence[dict[str, Any]]) -> None:
    """Replace the arguments of calls, which are JSON texts, by objects."""
    for index, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = _arguments(call["function"]["arguments"], index)


def _with_instructions(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The messages with a text at the end of the system message, which begins them."""
    system = [messages[0]["content"]] if messages[0]["role"] == "system" else []
    return [{"role": "system", "content": "\n\n".join([*system, text])}, *messages[len(system) :]]


def _in_content(form: CallForm, message: dict[str, Any]) -> dict[str, Any]:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    if not functions:
        return message
    calls = form.calls_text([(function["name"], function["arguments"]) for function in functions])
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": f"{message['content'] or ''}{calls}"}


def _arguments(text: str, index: int) -> Any:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        value = error
    if not isinstance(value, dict):
        param = f"messages.{index}.tool_calls"
        raise OpenAIError(400, param, expected="arguments that are a JSON object", got=repr(text[:80]), param=param)
    return value


def _wrapped(seed: int) -> int:
    """The seed wrapped to 64 bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
