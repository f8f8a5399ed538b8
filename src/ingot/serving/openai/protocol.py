"""The bodies of requests, as `pydantic` models: typed, bounded, and refused if they use unsupported features.

parse(ChatRequest, b'{"model": "m", "messages": [...]}')  ->  ChatRequest

Fields of OpenAI that have no effect here (`user`, `metadata`) are accepted; any other unknown field is an error that
names it. `top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `chat_template_kwargs` and `reasoning_format` are
those of llama.cpp and vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ingot.language.session import SAMPLING
from ingot.serving.openai.errors import OpenAIError

MAX_CHOICES = 128  # of a request
_INT64 = 1 << 63
_MAX_SHOWN_CHARS = 200  # characters of a wrong value
_ALTERNATIVE = re.compile(r"constrained-|\w+\[|NamedTool$")  # how `pydantic` names one of a union in a place
_RESERVED_NAMES = ("self", "messages", "tools")  # that `chat_template_kwargs` may not replace
_TAGGED = "response_format"  # the field whose alternatives have tags
Text = Annotated[str, Field(max_length=1 << 26)]
Count = Annotated[int, Field(ge=0, le=1 << 31)]
TokenIds = Annotated[list[Count], Field(min_length=1, max_length=1 << 22)]
Body = TypeVar("Body", bound="_Body")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class _Sampled(_Body):
    """The common fields of completions and chats."""

    model: Annotated[str, Field(max_length=200)]
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Count | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    @field_validator("logit_bias")
    @classmethod
    def _check_token_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        if bias is not None and (wrong := [key for key in bias if not key.isdecimal() or len(key) > 10]):
            raise ValueError(f"keys should be token ids, got {wrong[0][:_MAX_SHOWN_CHARS]!r}")
        return bias

    @model_validator(mode="after")
    def _check_stream_options(self):
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options need stream: true")
        return self

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def stops(self) -> list[str]:
        """The texts that end an answer, without empty ones."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in texts if text]

    @property
    def sampling(self) -> dict[str, Any]:
        """The options, as arguments of `LanguageModel.generate`."""
        options = {name: getattr(self, name) for name in SAMPLING if name != "seed"}  # each answer has its own
        bias = {int(key): value for key, value in (self.logit_bias or {}).items()}
        return {**options, "stop": self.stops, "logit_bias": bias or None, "ignore_ends": self.ignore_eos}


class CompletionRequest(_Sampled):
    prompt: Text | TokenIds | Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES)] | Annotated[
        list[TokenIds], Field(min_length=1, max_length=MAX_CHOICES)
    ]  # fmt: skip
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt  # pyright: ignore[reportReturnType]


class Function(_Body):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Body):
    type: Literal["function"]
    function: Function


class _FunctionName(_Body):
    name: str


class NamedTool(_Body):
    type: Literal["function"]
    function: _FunctionName


class CalledFunction(_Body):
    name: str
    arguments: Text


class ToolCall(_Body):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(_Body):
    """content: a text, or parts of type "text", which are joined. The fields that hold None or nothing are those of
    answers, which clients send back as they came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[dict[str, Any]] | None = None
    name: str | None = None
    reasoning_content: Text | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    @field_validator("content")
    @classmethod
    def _check_parts(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else ():
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ValueError(f"parts should be of type 'text', got {str(part.get('type'))[:_MAX_SHOWN_CHARS]!r}")
        return content

    @model_validator(mode="after")
    def _check_content(self):
        if self.content is None and not self.tool_calls:
            raise ValueError(f"a message of role {self.role!r} should have content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message has tool_calls")
        return self

    @property
    def text(self) -> str:
        return "".join(p["text"] for p in self.content) if isinstance(self.content, list) else self.content or ""


class JsonSchema(_Body):
    name: Annotated[str, Field(max_length=64)]
    description: Text | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class TextFormat(_Body):
    type: Literal["text"]


class JsonFormat(_Body):
    type: Literal["json_object"]


class SchemaFormat(_Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class ChatRequest(_Sampled):
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    response_format: Annotated[TextFormat | JsonFormat | SchemaFormat, Field(discriminator="type")] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    modalities: list[Literal["text"]] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _check_names(cls, values: dict[str, Any] | None) -> dict[str, Any] | None:
        if wrong := [name for name in values or () if name in _RESERVED_NAMES or name.startswith("_")]:
            raise ValueError(f"names should be those of further variables, got {wrong[0][:_MAX_SHOWN_CHARS]!r}")
        return values

    @model_validator(mode="after")
    def _check_tools(self):
        names = [tool.function.name for tool in self.tools or ()]
        if len({*names}) < len(names):
            raise ValueError("tools should have different names")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ValueError(f"tool_choice should name one of the tools {names}")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice 'required' needs tools")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs need logprobs: true")
        return self

    @property
    def max_answer_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        """The number of alternatives of each token; None: no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingRequest(_Body):
    model: Annotated[str, Field(max_length=200)]
    input: Text | TokenIds | Annotated[list[Text], Field(min_length=1, max_length=2048)] | Annotated[
        list[TokenIds], Field(min_length=1, max_length=2048)
    ]  # fmt: skip
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None

    @property
    def texts(self) -> list[str | list[int]]:
        if isinstance(self.input, str):
            return [self.input]
        return [self.input] if isinstance(self.input[0], int) else self.input  # pyright: ignore[reportReturnType]


def parse(kind: type[Body], body: bytes) -> Body:
    """Parse a body. Raises OpenAIError (400), which names the first invalid field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        place = _place(errors[0]["loc"])
        param = ".".join(map(str, place))[:_MAX_SHOWN_CHARS] or None
        if errors[0]["type"] == "extra_forbidden":
            raise OpenAIError(400, f"{param} is not supported", param=param, code="unsupported_parameter") from error
        inner, text = _closest([e for e in errors if _place(e["loc"]) == place], len(place) + 1)
        where = ".".join(map(str, (*place, *inner)))[:_MAX_SHOWN_CHARS]
        raise OpenAIError(400, f"{where}: {text}" if where else text, param=param) from error


def _place(location: Sequence[int | str]) -> tuple[int | str, ...]:
    """The field of an error, without the alternative of a union and the place in it, or the tag of an alternative."""
    if location[:1] == (_TAGGED,):
        location = (*location[:1], *location[2:])
    return tuple(takewhile(lambda part: not _ALTERNATIVE.match(str(part)), location))


def _closest(errors: Sequence[Mapping[str, Any]], start: int) -> tuple[tuple[int | str, ...], str]:
    """(the place from `start` on, a message) about a value that fits none of the alternatives of its field: for those
    that it comes closest to, whose type it has, or the type of whose parts are wrong."""

    def fit(error: Mapping[str, Any]) -> tuple[bool, int]:
        return not error["type"].endswith(("_type", "literal_error")), len(error["loc"])

    inner = max(errors, key=fit)["loc"][start:]
    best = max(map(fit, errors))
    texts = [*dict.fromkeys(e["msg"] for e in errors if fit(e) == best and e["loc"][start:] == inner)]
    first, *others = texts
    return inner, " or ".join(
        [first.removeprefix("Value error, "), *(t.removeprefix("Input should be ") for t in others)]
    )
