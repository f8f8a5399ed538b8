"""Grammars of answers that may call tools, in Lark's language.

    calls_grammar(form, tools, tokenizer, ...)         what an answer may be
    thoughtful_grammar(reasoning, schema, tokenizer)   a thought, then an object

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ingot.language.text.tokenizer import Tokenizer
from ingot.serving.openai.calls import ANY_ID, COUNT, ByName, CallForm
from ingot.serving.openai.protocol import Tool
from ingot.serving.openai.reasoning import Reasoning

# as `json.dumps` writes them; a model could go on with spaces between any two words
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_TEXT = r"TEXT: /(.|\n)*/"
_PYTHON = r"""
python: PYTHON_TEXT | %json {"type": "number"} | "True" | "False" | "None" | "[" (python (", " python)*)? "]" | "{" (entry (", " entry)*)? "}"
entry: PYTHON_TEXT ": " python
PYTHON_TEXT: /'([^'\\\n]|\\.)*'|"([^"\\\n]|\\.)*"/
"""  # noqa: E501


def calls_grammar(
    form: CallForm,
    tools: Sequence[Tool],
    tokenizer: Tokenizer,
    *,
    is_required: bool,
    has_several: bool,
    schema: Any = None,
    reasoning: Reasoning | None = None,
    is_thinking: bool = False,
) -> str | None:
    """None where anything may be answered. schema: what else an answer may be. reasoning: how the model thinks before
    it answers; is_thinking: the prompt has begun a thought."""
    literal = _Literals(tokenizer)
    rules = [*_call_rules(form, tools, literal), _TEXT]
    more = f" ({literal(form.between)} call)*" if has_several and form.between is not None else ""
    after = literal(form.after)
    if is_required or schema is not None:
        thought, own = _thought(reasoning, literal, is_thinking=is_thinking)
        other = "" if is_required else f" | {thought} %json {json.dumps(schema)}"
        start = f"start: {thought} marked{other}"
        return "\n".join([start, *own, f"marked: {literal(form.before)} call{more} {after}", *rules])
    if not form.trigger:
        return None
    rest = literal(form.before[len(form.trigger) :])
    lines = ["start: marked? tail", "tail: TEXT", literal.until("head", form.trigger)]
    return "\n".join([*lines, f"marked: head {rest} call{more} {after}", *rules])


def thoughtful_grammar(reasoning: Reasoning, schema: Any, tokenizer: Tokenizer) -> str:
    """Of an answer that keeps to a schema, where the prompt has begun a thought."""
    thought, own = _thought(reasoning, _Literals(tokenizer), is_thinking=True)
    return "\n".join([f"start: {thought} %json {json.dumps(schema)}", *own, _TEXT])


def _thought(reasoning: Reasoning | None, literal: _Literals, *, is_thinking: bool) -> tuple[str, list[str]]:
    """(what an answer begins with, its rules)."""
    if reasoning is None:
        return "", []
    begin = "" if is_thinking else literal(reasoning.begin)
    rules = [f"thought: {begin} thinking SPACES", literal.until("thinking", reasoning.end), r"SPACES: /[ \n]*/"]
    return "thought" if is_thinking else "thought?", rules


def _call_rules(form: CallForm, tools: Sequence[Tool], literal: _Literals) -> list[str]:
    parameters = [(tool.function.name, tool.function.parameters or {"type": "object"}) for tool in tools]
    if form.by_name is not None:
        return _rules_by_name(form, form.by_name, parameters, literal)
    if not form.keys:
        calls = [
            f"{json.dumps(name)} {literal(form.middle)} %json {json.dumps({**schema, 'x-guidance': _SPACES})}"
            for name, schema in parameters
        ]
        return [f"call: {' | '.join(calls)}"]
    schemas: list[dict[str, Any]] = []
    for name, arguments in parameters:
        known = {form.name_key: {"const": name}, form.arguments_key: arguments}
        properties = {key: known.get(key, {"type": "string", "pattern": "^[A-Za-z0-9]{9}$"}) for key in form.keys}
        schemas.append(
            {"type": "object", "properties": properties, "required": [*form.keys], "additionalProperties": False}
        )
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return [f"call: %json {json.dumps({**schema, 'x-guidance': _SPACES})}"]


def _rules_by_name(
    form: CallForm, by_name: ByName, parameters: Sequence[tuple[str, Mapping[str, Any]]], literal: _Literals
) -> list[str]:
    """Arguments come in the order of the schema; those that are not required may be left out."""
    rules = [_PYTHON] if by_name.is_python else []
    calls: list[str] = []
    for i, (name, schema) in enumerate(parameters):
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = {*(schema.get("required") or ())}
        empty = json.dumps("") if by_name.empty is None else literal(by_name.empty)
        # rest_k: of what is left from the k-th on, behind another argument; first_k: where none has come
        count = len(properties)
        rules += [f'rest{i}_{count}: ""', f"first{i}_{count}: {empty}"]
        for k, (key, own) in enumerate(properties.items()):
            rules += _argument(f"argument{i}_{k}", key, own, by_name, literal)
            for kind, mark in (("rest", by_name.following), ("first", form.middle)):
                skipped = "" if key in required else f" | {kind}{i}_{k + 1}"
                rules.append(f"{kind}{i}_{k}: {literal(mark)} argument{i}_{k} rest{i}_{k + 1}{skipped}")
        calls.append(f"{json.dumps(name)} first{i}_0")
    return [f"call: {' | '.join(calls)}", *rules]


def _argument(rule: str, key: str, schema: Any, by_name: ByName, literal: _Literals) -> list[str]:
    """Key, value, and what ends it."""
    own = schema if isinstance(schema, Mapping) else {}
    kind, words = own.get("type"), own.get("enum")
    words = words if isinstance(words, list) and all(isinstance(word, str) for word in words) else []
    name = json.dumps(key)
    if by_name.is_python:
        value = {"string": "PYTHON_TEXT", "boolean": '("True" | "False")', "null": '"None"'}.get(str(kind), "python")
        if words:
            value = f"({' | '.join(json.dumps(repr(word)) for word in words)})"
        elif kind in ("integer", "number"):
            value = f"%json {json.dumps(dict(own))}"
        return [f"{rule}: {name} {literal(by_name.other_value)} {value} {literal(by_name.other_end)}"]
    if words:
        value = f"({' | '.join(map(json.dumps, words))}) {literal(by_name.text_end)}"
        return [f"{rule}: {name} {literal(by_name.text_value)} {value}"]
    if kind in ("integer", "number", "boolean", "array", "object", "null"):
        value = f"%json {json.dumps({**own, 'x-guidance': _SPACES})} {literal(by_name.other_end)}"
        return [f"{rule}: {name} {literal(by_name.other_value)} {value}"]
    text = f"{rule}_text"
    return [f"{rule}: {name} {literal(by_name.text_value)} {text}", literal.until(text, by_name.text_end)]


class _Literals:
    """Texts in Lark's language. A special token is not the characters of its name; numbers count calls."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {token.content: index for index, token in added.items() if token.special}
        names = sorted(self._special, key=len, reverse=True)
        self._parts = re.compile("|".join([*map(re.escape, names), ANY_ID, COUNT.pattern]))

    def __call__(self, text: str) -> str:
        out: list[str] = []
        at = 0
        for found in self._parts.finditer(text):
            out += [json.dumps(text[at : found.start()])] if found.start() > at else []
            name = found.group()
            other = "/[A-Za-z0-9]{9}/" if name == ANY_ID else "/[0-9]+/"
            out.append(f"<[{self._special[name]}]>" if name in self._special else other)
            at = found.end()
        out += [json.dumps(text[at:])] if at < len(text) else []
        return " ".join(out)

    def until(self, rule: str, mark: str) -> str:
        """The rule of any text up to a mark, and the mark. No text has a special token in it."""
        own = self(mark)
        return f"{rule}: TEXT {own}" if own.startswith("<") else f"{rule}[lazy]: TEXT {own}"
