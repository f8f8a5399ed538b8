"""Grammars of answers that may call tools, in Lark's language.

    calls_grammar(form, tools, tokenizer, ...)         the possible answers
    thoughtful_grammar(reasoning, schema, tokenizer)   a thought, then an object

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ingot.language.text.grammar import JSON_SPACES
from ingot.language.text.tokenizer import Tokenizer
from ingot.serving.openai.calls import ANY_ID, ANY_TYPE, COUNT, KEY, ByName, CallForm
from ingot.serving.openai.protocol import Tool
from ingot.serving.openai.reasoning import Reasoning

_TEXT, _SOME = r"TEXT: /(.|\n)*/", r"SOME: /(.|\n)+/"
# values with a mark around texts, whose words and separators are that notation's
_QUOTED = """
quoted: quoted_text | %json {{"type": "number"}} | {words} | "[" (quoted ({comma} quoted)*)? "]" | "{{" (entry ({comma} entry)*)? "}}"
entry: {key} {colon} quoted
"""  # noqa: E501
_PYTHON_TEXT = r"""/'([^'\\\n]|\\.)*'|"([^"\\\n]|\\.)*"/"""


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
    """The grammar; None if any answer is possible. schema: of an answer without calls. reasoning: the marks of
    thoughts before an answer. is_thinking: whether the prompt has begun a thought."""
    literal = _Literals(tokenizer)
    rules = [*_call_rules(form, tools, literal), _TEXT]
    further_calls = f" ({literal(form.between)} call)*" if has_several and form.between is not None else ""
    after = literal(form.after)
    if is_required or schema is not None:
        thought, thought_rules = _thought(reasoning, literal, is_thinking=is_thinking)
        other = "" if is_required else f" | {thought} {_framed(reasoning, schema, literal)}"
        start = f"start: {thought} {_empty_answer(reasoning, literal, is_thinking=is_thinking)} marked{other}"
        return "\n".join([start, *thought_rules, f"marked: {literal(form.before)} call{further_calls} {after}", *rules])
    if not form.trigger:
        return None
    marked = f"{literal(form.before[len(form.trigger) :])} call{further_calls} {after}"
    parts = literal.parts(form.trigger)
    if literal.has_special(parts[:1]) and literal.has_special(parts[-1:]) and parts[0] not in parts[1:]:
        lines = [*literal.marked_text("start", parts, "marked tail"), *literal.marked_text("tail", parts), _SOME]
    elif form.long_trigger and literal.has_special(parts):
        return None
    else:
        lines = [literal.until("head", form.trigger), "start: (head marked)? tail", "tail: TEXT"]
    return "\n".join([*lines, f"marked: {marked}", *rules])


def thoughtful_grammar(reasoning: Reasoning, schema: Any, tokenizer: Tokenizer) -> str:
    """The grammar of an answer with a schema, if the prompt has begun a thought."""
    literal = _Literals(tokenizer)
    thought, thought_rules = _thought(reasoning, literal, is_thinking=True)
    return "\n".join([f"start: {thought} {_framed(reasoning, schema, literal)}", *thought_rules, _TEXT])


def _json(schema: Mapping[str, Any]) -> str:
    """The symbol of JSON by a schema."""
    return f"%json {json.dumps({'x-guidance': JSON_SPACES, **schema})}"


def _framed(reasoning: Reasoning | None, schema: Any, literal: _Literals) -> str:
    """An answer with a schema, between the marks of answers."""
    begin, end = (literal(mark) for mark in _answer_marks(reasoning))
    return f"{begin} {_json(schema)} {end}"


def _empty_answer(reasoning: Reasoning | None, literal: _Literals, *, is_thinking: bool) -> str:
    """The marks of an answer without text, which may precede calls; the prompt may have begun it."""
    begin, end = (literal(mark) for mark in _answer_marks(reasoning))
    if not begin:
        return ""
    return f"({begin} {end})?" if is_thinking else f"(({begin})? {end})?"


def _answer_marks(reasoning: Reasoning | None) -> tuple[str, str]:
    return ("", "") if reasoning is None else (reasoning.answer_begin, reasoning.answer_end)


def _thought(reasoning: Reasoning | None, literal: _Literals, *, is_thinking: bool) -> tuple[str, list[str]]:
    """(the symbol of an optional thought, its rules)."""
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
        calls = [f"{json.dumps(name)} {literal(form.middle)} {_json(schema)}" for name, schema in parameters]
        return [f"call: {' | '.join(calls)}"]
    schemas: list[dict[str, Any]] = []
    for name, arguments in parameters:
        schemas_by_key = {form.name_key: {"const": name}, form.arguments_key: arguments}
        properties = {
            key: schemas_by_key.get(key, {"type": "string", "pattern": "^[A-Za-z0-9]{1,9}$"}) for key in form.keys
        }
        schemas.append(
            {"type": "object", "properties": properties, "required": [*form.keys], "additionalProperties": False}
        )
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return [f"call: {_json(schema)}"]


def _rules_by_name(
    form: CallForm, by_name: ByName, parameters: Sequence[tuple[str, Mapping[str, Any]]], literal: _Literals
) -> list[str]:
    """The rules of calls with arguments by name, in the order of the schema; optional ones may be omitted."""
    rules = _quoted_rules(by_name, literal) if by_name.quote else []
    calls: list[str] = []
    for i, (name, schema) in enumerate(parameters):
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = {*(schema.get("required") or ())}
        empty = json.dumps("") if by_name.empty is None else literal(by_name.empty)
        # rest_k: the arguments from the k-th on, after another argument; first_k: the same without one before
        count = len(properties)
        rules += [f'rest{i}_{count}: ""', f"first{i}_{count}: {empty}"]
        for k, (key, argument_schema) in enumerate(properties.items()):
            rules += _argument(f"argument{i}_{k}", key, argument_schema, by_name, literal)
            for kind, mark in (("rest", by_name.following), ("first", form.middle)):
                skipped = "" if key in required else f" | {kind}{i}_{k + 1}"
                rules.append(f"{kind}{i}_{k}: {literal(mark)} argument{i}_{k} rest{i}_{k + 1}{skipped}")
        calls.append(f"{json.dumps(name)} first{i}_0")
    return [f"call: {' | '.join(calls)}", *rules]


def _quoted_rules(by_name: ByName, literal: _Literals) -> list[str]:
    quote, comma = literal(by_name.quote), literal(by_name.following)
    if by_name.is_python:
        form = {"words": '"True" | "False" | "None"', "key": "quoted_text", "colon": '": "'}
        return [_QUOTED.format(comma=comma, **form), "quoted_text: PYTHON_TEXT", f"PYTHON_TEXT: {_PYTHON_TEXT}"]
    form = {"words": '"true" | "false" | "null" | "None"', "key": "QUOTED_KEY", "colon": literal(by_name.other_value)}
    key, text = (
        r"QUOTED_KEY: /[\w.$-]+/",
        [f"quoted_text: {quote} quoted_rest", literal.until("quoted_rest", by_name.quote)],
    )
    return [_QUOTED.format(comma=comma, **form), key, *text]


def _argument(rule: str, key: str, schema: Any, by_name: ByName, literal: _Literals) -> list[str]:
    """The rules of an argument: key, value and end mark."""
    details = schema if isinstance(schema, Mapping) else {}
    kind, words = details.get("type"), details.get("enum")
    words = words if isinstance(words, list) and all(isinstance(word, str) for word in words) else []
    name = json.dumps(key)
    text_end, other_end = (literal(end.replace(KEY, key)) for end in (by_name.text_end, by_name.other_end))
    if by_name.quote:
        yes, no, none = ("True", "False", "None") if by_name.is_python else ("true", "false", "null")
        value = {"string": "quoted_text", "boolean": f'("{yes}" | "{no}")', "null": f'"{none}"'}.get(
            str(kind), "quoted"
        )
        if words:
            mark = literal("" if by_name.is_python else by_name.quote)
            texts = (json.dumps(repr(word) if by_name.is_python else word) for word in words)
            value = f"({' | '.join(f'{mark} {text} {mark}' for text in texts)})"
        elif kind in ("integer", "number"):
            value = _json(details)
        return [f"{rule}: {name} {literal(by_name.other_value)} {value} {other_end}"]
    if words:
        value = f"({' | '.join(map(json.dumps, words))}) {text_end}"
        return [f"{rule}: {name} {literal(by_name.text_value)} {value}"]
    other_value = literal(by_name.other_value.replace(ANY_TYPE, "number" if kind == "integer" else str(kind)))
    if kind in ("integer", "number", "boolean", "null") or (kind in ("array", "object") and not by_name.item):
        value = f"{_json(details)} {other_end}"
        return [f"{rule}: {name} {other_value} {value}"]
    text = f"{rule}_text"
    return [
        f"{rule}: {name} {literal(by_name.text_value)} {text}",
        literal.until(text, by_name.text_end.replace(KEY, key)),
    ]


class _Literals:
    """Texts as Lark literals. Special tokens become tokens, not characters; numbers, which count calls, match any."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {token.content: index for index, token in added.items() if token.special}
        self._ends = frozenset(tokenizer.end_ids)
        names = sorted(self._special, key=len, reverse=True)
        self._names = "|".join(map(re.escape, names))
        self._parts = re.compile("|".join([*map(re.escape, names), ANY_ID, COUNT.pattern]))

    def __call__(self, text: str) -> str:
        parts: list[str] = []
        position = 0
        for match in self._parts.finditer(text):
            parts += [json.dumps(text[position : match.start()])] if match.start() > position else []
            name = match.group()
            other = "/[A-Za-z0-9]{9}/" if name == ANY_ID else "/[0-9]+/"
            parts.append(f"<[{self._special[name]}]>" if name in self._special else other)
            position = match.end()
        parts += [json.dumps(text[position:])] if position < len(text) else []
        return " ".join(parts)

    def parts(self, text: str) -> list[str]:
        """The special tokens of a text, and the texts before, between and behind them."""
        return [part for part in re.split(f"({self._names})", text) if part] if self._names else [text]

    def has_special(self, parts: Sequence[str]) -> bool:
        return not self._special.keys().isdisjoint(parts)

    def marked_text(self, rule: str, trigger: Sequence[str], then: str = "") -> list[str]:
        """The rules of any text, special tokens included, in which `then` follows each trigger; without `then` it has
        no trigger. trigger: parts, of which the first and the last are special tokens; the first occurs once.

        The rules are the states of an automaton: rule_k follows the first k parts of the trigger, rule_marks a text.
        """
        first, count = trigger[0], len(trigger)

        def step(k: int) -> str:
            """What follows in state k, if the next part is that of the trigger."""
            following = f"{rule}_{k + 1}" if k + 1 < count else then
            return f" | {self(trigger[k])} {following}" if following else ""

        def other_marks(*names: str) -> str:
            others = [str(i) for name, i in self._special.items() if name not in names and i not in self._ends]
            return f'"" | <[{",".join(others)}]> {rule}' if others else '""'

        rules = [f"{rule}: TEXT {rule}_marks", f"{rule}_marks: {other_marks(first)}{step(0)}"]
        for k in range(1, count):
            part, name = trigger[k], f"{rule}_{k}".upper()
            if part in self._special:
                text = f" | SOME {rule}_marks" if trigger[k - 1] in self._special else ""
                rules.append(f"{rule}_{k}: {other_marks(first, part)}{step(0)}{step(k)}{text}")
            else:
                rules += [f"{rule}_{k}: OTHER_{name} {rule}_marks{step(k)}", f"{name}: {json.dumps(part)}"]
                rules.append(f"OTHER_{name}: /(.|\\n)*/ & ~{name}")
        return rules

    def until(self, rule: str, mark: str) -> str:
        """The rule of any text up to and including a mark. Text never contains special tokens."""
        literal = self(mark)
        return f"{rule}: TEXT {literal}" if literal.startswith("<") else f"{rule}[lazy]: TEXT {literal}"
