"""Calls of tools: how models write them, the grammar of them, and how they are found in an answer.

    format = format_of(template)                       of the families' chat templates
    format.grammar(tools, ...)                         what an answer may be
    CallReader(format, names).push(text)               ->  what is content, and the calls

A call that is none, as it is no JSON or names no tool, stays part of the content.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ingot.language.text.generation import overlap
from ingot.language.text.tokenizer import Tokenizer
from ingot.serving.openai.errors import OpenAIError
from ingot.serving.openai.protocol import Tool
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class CallFormat:
    """begin, end: what stands around a call, or around a list of them; without `begin` the whole answer is one call.
    arguments: the key of a call's arguments. is_list: whether calls stand in a JSON list."""

    begin: str
    end: str = ""
    arguments: str = "arguments"
    is_list: bool = False


# as `json.dumps` writes them; a model could go on with spaces between any two words
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
HERMES = CallFormat("<tool_call>", "</tool_call>")
MISTRAL = CallFormat("[TOOL_CALLS]", is_list=True)
LLAMA = CallFormat("", arguments="parameters")


def format_of(template: str) -> CallFormat:
    """How the model of a chat template writes calls. Raises OpenAIError (400) for one without tools."""
    if not re.search(r"\btools\b", template):
        raise OpenAIError(400, "the model's chat template has no tools", param="tools", code="unsupported_parameter",
                          fix="leave tools out, or serve it with a --template that has them")  # fmt: skip
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        return MISTRAL
    # <function=NAME> is a form of its own inside the same marks
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return HERMES
    if '"parameters":' in template and '{"name":' in template:
        return LLAMA
    expected = (
        'calls as JSON: <tool_call>{"name": ...}</tool_call>, [TOOL_CALLS][...] or {"name": ..., "parameters": ...}'
    )
    raise OpenAIError(400, "the model's chat template", expected=expected, got="another form of calls",
                      param="tools", code="unsupported_parameter")  # fmt: skip


def calls_grammar(
    format: CallFormat,
    tools: Sequence[Tool],
    tokenizer: Tokenizer,
    *,
    is_required: bool,
    has_several: bool,
    schema: Any = None,
) -> str | None:
    """A grammar in Lark's language; None where anything may be answered. schema: what else an answer may be.

    https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md#tool-calling
    """
    call = _call_schema(format, tools)
    if format.is_list:
        call = {"type": "array", "items": call, "minItems": 1, **({} if has_several else {"maxItems": 1})}
    call["x-guidance"] = _SPACES
    mark = _mark(format.begin, tokenizer)
    break_ = r' "\n"' if format.end else ""
    end = f"{break_} {json.dumps(format.end)}" if format.end else ""
    body = f"call: %json {json.dumps(call)}\n"
    is_repeated = has_several and bool(format.end)
    marked = f"{mark}{break_} call{end}"
    if is_required or schema is not None:
        only = 'marked ("\\n" marked)*' if is_repeated else "marked"
        other = "" if is_required else f" | %json {json.dumps(schema)}"
        return f"start: {only}{other}\nmarked: {marked}\n{body}"
    if not format.begin:
        return None
    times = "*" if is_repeated else "?"
    head = f"head: TEXT {mark}" if mark.startswith("<") else f"head[lazy]: TEXT {mark}"
    return f"start: marked{times} tail\ntail: TEXT\nTEXT: /(.|\\n)*/\n{head}\nmarked: head{break_} call{end}\n{body}"


def _call_schema(format: CallFormat, tools: Sequence[Tool]) -> dict[str, Any]:
    """In the order of keys that models are trained on."""
    calls: list[dict[str, Any]] = []
    for tool in tools:
        arguments = tool.function.parameters or {"type": "object"}
        properties = {"name": {"const": tool.function.name}, format.arguments: arguments}
        calls.append({"type": "object", "properties": properties, "required": [*properties],
                      "additionalProperties": False})  # fmt: skip
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _mark(text: str, tokenizer: Tokenizer) -> str:
    """A special token is not the characters of its name."""
    index = special_id(text, tokenizer)
    if index is not None:
        return f"<[{index}]>"
    return json.dumps(text) if text else ""


def special_id(text: str, tokenizer: Tokenizer) -> int | None:
    """The id of a special token; None for text that is none."""
    index = tokenizer.backend.token_to_id(text) if text else None
    added = tokenizer.backend.get_added_tokens_decoder()
    return index if index in added and added[index].special else None


@dataclass(frozen=True)
class Call:
    """arguments: JSON, as the model wrote it, parsed and printed again."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


class CallReader:
    """Finds calls in a text that comes in parts. names: of the tools."""

    def __init__(self, format: CallFormat, names: Sequence[str]) -> None:
        self._format, self._names = format, {*names}
        self._kept, self._is_inside = "", False
        self.has_calls = False

    def push(self, text: str) -> tuple[str, list[Call]]:
        """(what is certain and content, the calls that are complete)."""
        self._kept += text
        begin, end = self._format.begin, self._format.end
        if not begin:  # of an answer that is no object nothing need be kept
            is_other = bool(self._kept.strip()) and not self._kept.lstrip().startswith("{")
            return (self._take(len(self._kept)) if is_other else ""), []
        content, calls = "", list[Call]()
        while True:
            mark = end if self._is_inside else begin
            place = self._kept.find(mark) if mark else -1
            if place < 0:
                break
            part = self._take(place)
            self._take(len(mark))
            if self._is_inside:
                found = self._calls(part)
                calls += found
                content += "" if found else f"{begin}{part}{end}"
            else:
                content += part
            self._is_inside = not self._is_inside
        if not self._is_inside:
            content += self._take(len(self._kept) - overlap(self._kept, begin))
        return self._trimmed(content), calls

    def finish(self) -> tuple[str, list[Call]]:
        """The rest."""
        rest, self._kept = self._kept, ""
        begin = self._format.begin
        if begin and not self._is_inside:
            return self._trimmed(rest), []
        calls = self._calls(rest)  # a list ends with the answer, and some models leave the last mark out
        return ("" if calls else f"{begin}{rest}"), calls

    def _calls(self, text: str) -> list[Call]:
        """[] for what is no call."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return []
        values = values if isinstance(values, list) else [values]
        calls: list[Call] = []
        for value in values:
            if not isinstance(value, Mapping) or value.get("name") not in self._names:
                return []
            arguments = value.get("arguments", value.get("parameters", {}))
            calls.append(Call(value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments)))
        self.has_calls = self.has_calls or bool(calls)
        return calls

    def _trimmed(self, content: str) -> str:
        """Line breaks between calls are no content."""
        return "" if self.has_calls and not content.strip() else content

    def _take(self, count: int) -> str:
        text, self._kept = self._kept[:count], self._kept[count:]
        return text
