"""Calls of tools: how a model writes them, the grammar of them, and how they are found in an answer.

    form = call_form(render, tokenizer)                learned from what the chat template makes of two calls
    calls_grammar(form, tools, tokenizer, ...)         what an answer may be
    CallReader(form, names).push(text)                 ->  what is content, and the calls

    <tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>      before, a call, after
    [TOOL_CALLS]add[ARGS]{"a": 1}                                          before, name, middle, arguments

A call that is none, as it is no JSON or names no tool, stays part of the content.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ingot.language.text.generation import overlap
from ingot.language.text.tokenizer import Tokenizer
from ingot.serving.openai.errors import OpenAIError
from ingot.serving.openai.protocol import Tool
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

Render = Callable[..., str]  # (messages, tools, **values) -> text
_NAMES = ("first_probe", "second_probe")
_ARGUMENTS = ({"probe": "one"}, {"probe": "two"})
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {
        "type": "object", "properties": {"probe": {"type": "string"}}, "required": ["probe"]}}}
    for name in _NAMES
]  # fmt: skip
# as `json.dumps` writes them; a model could go on with spaces between any two words
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_TRIGGER = re.compile(r"<[^<>\s]+>|\[\w+\]|[<\[]?[^\s{\[<]+")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_IDS, _ANY_ID = ("probe0000", "probe0001"), "\0"  # what stands for a call's id in a form
_TEXT = "probe answer"
_ID = string.ascii_letters + string.digits  # nine of these are what Mistral's templates take
_COUNT = re.compile(r"(?<=:)\d+")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class CallForm:
    """before, between, after: what stands around calls; between is None where there is one at most. trigger: what
    `before` begins with in an answer that may be a text; "": such an answer is a call as a whole.

    keys: of the JSON object that is a call, in order; name_key, arguments_key: two of them. Without keys a call is the
    name, `middle`, and its arguments. takes_text: whether the template takes arguments as text, not as an object.
    """

    before: str
    between: str | None
    after: str
    keys: tuple[str, ...] = ()
    name_key: str = ""
    arguments_key: str = ""
    middle: str = ""
    takes_text: bool = False

    @property
    def trigger(self) -> str:
        found = _TRIGGER.match(self.before)
        return "" if found is None else found.group()


def call_form(render: Render, tokenizer: Tokenizer) -> CallForm:
    """Raises OpenAIError (400) for a template that writes no tools, or calls that are no JSON."""
    user = [{"role": "user", "content": "probe"}]
    try:
        prompt = render(user, _TOOLS)
    except InputError:
        prompt = ""
    if _NAMES[0] not in prompt:
        raise OpenAIError(400, "the model's chat template has no tools", param="tools", code="unsupported_parameter",
                          fix="leave tools out, or serve it with a --template that has them")  # fmt: skip
    ask = _Probe(render, tokenizer, user, prompt)
    one = ask.calls(1, takes_text=False)
    takes_text = one is None or str(_ARGUMENTS[0]) in one  # refused, or written as Python has it
    one = ask.calls(1, takes_text=True) if takes_text else one
    form = None if one is None else _form(one, ask.calls(2, takes_text=takes_text), takes_text)
    if form is not None:
        return form
    raise OpenAIError(400, "the model's chat template", expected="calls of tools with arguments as JSON",
                      got="another form of calls", param="tools", code="unsupported_parameter")  # fmt: skip


@dataclass(frozen=True)
class _Probe:
    """Answers as a template writes them into the history. prompt: what comes before one."""

    render: Render
    tokenizer: Tokenizer
    user: list[dict[str, str]]
    prompt: str

    def calls(self, count: int, *, takes_text: bool) -> str | None:
        """Of so many calls, without what stands before any answer and what ends it; None where that is refused."""
        calls = [
            {"id": _IDS[i], "type": "function",
             "function": {"name": _NAMES[i], "arguments": json.dumps(_ARGUMENTS[i]) if takes_text else _ARGUMENTS[i]}}
            for i in range(count)
        ]  # fmt: skip
        found = self._answer({"content": "", "tool_calls": calls})
        text = self._answer({"content": _TEXT}) or ""
        opening = text.partition(_TEXT)[0] if _TEXT in text else ""
        return found and found.removeprefix(opening)

    def _answer(self, message: dict[str, Any]) -> str | None:
        try:
            whole = self.render([*self.user, {"role": "assistant", **message}], _TOOLS, add_generation_prompt=False)
        except InputError:
            return None
        pairs = enumerate(zip(whole, self.prompt, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(whole), len(self.prompt)))
        mark = max(whole.rfind("<", 0, same), whole.rfind("[", 0, same))
        if mark >= 0 and not re.search(r"[>\]]", whole[mark:same]):  # two marks that begin alike
            same = mark
        answer = whole[same:]
        ends = [place for i in self.tokenizer.ends if (place := answer.find(self.tokenizer.token(i))) >= 0]
        return answer[: min(ends)] if ends else answer


@dataclass(frozen=True)
class _Place:
    """Of a call in an answer: where it begins and ends, and what it is made of."""

    begin: int
    end: int
    keys: tuple[str, ...] = ()
    name_key: str = ""
    arguments_key: str = ""
    middle: str = ""


def _place(answer: str, which: int, start: int = 0) -> _Place | None:
    name, arguments = _NAMES[which], _ARGUMENTS[which]
    for brace in (m.start() for m in re.finditer(r"\{", answer[start:])):
        begin = start + brace
        try:
            value, end = _DECODER.raw_decode(answer, begin)
        except (ValueError, RecursionError):
            continue
        if value == arguments:
            named = answer.rfind(name, start, begin)
            return None if named < 0 else _Place(named, end, middle=answer[named + len(name) : begin])
        keys = {repr(v): k for k, v in value.items()}
        if repr(name) in keys and repr(arguments) in keys:
            return _Place(begin, end, tuple(value), keys[repr(name)], keys[repr(arguments)])
    return None


def _form(one: str, two: str | None, takes_text: bool) -> CallForm | None:
    place = _place(one, 0)
    if place is None:
        return None
    between = None
    if two is not None and (first := _place(two, 0)) and (second := _place(two, 1, first.end)):
        if _shape(first.middle) != _shape(second.middle) or first.keys != second.keys:
            return None
        between = two[first.end : second.begin]
    before, after = _shape(one[: place.begin]).lstrip(), _shape(one[place.end :]).rstrip()
    middle, between = _shape(place.middle), None if between is None else _shape(between)
    return CallForm(before, between, after, place.keys, place.name_key, place.arguments_key, middle, takes_text)


def _shape(text: str) -> str:
    """What all calls share: their ids differ, and numbers that count them."""
    for index in _IDS:
        text = text.replace(index, _ANY_ID)
    return _COUNT.sub("0", text)


# --- grammars


def calls_grammar(
    form: CallForm,
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
    literal = _Literals(tokenizer)
    rules = [_call_rule(form, tools, literal)]
    more = f" ({literal(form.between)} call)*" if has_several and form.between is not None else ""
    after = literal(form.after)
    if is_required or schema is not None:
        other = "" if is_required else f" | %json {json.dumps(schema)}"
        return "\n".join([f"start: marked{other}", f"marked: {literal(form.before)} call{more} {after}", *rules])
    if not form.trigger:
        return None
    mark, rest = literal(form.trigger), literal(form.before[len(form.trigger) :])
    head = f"head: TEXT {mark}" if mark.startswith("<") else f"head[lazy]: TEXT {mark}"
    text = ["tail: TEXT", r"TEXT: /(.|\n)*/", head]
    return "\n".join(["start: marked? tail", *text, f"marked: head {rest} call{more} {after}", *rules])


def _call_rule(form: CallForm, tools: Sequence[Tool], literal: _Literals) -> str:
    parameters = [(tool.function.name, tool.function.parameters or {"type": "object"}) for tool in tools]
    if not form.keys:
        calls = [
            f"{json.dumps(name)} {literal(form.middle)} %json {json.dumps({**schema, 'x-guidance': _SPACES})}"
            for name, schema in parameters
        ]
        return f"call: {' | '.join(calls)}"
    schemas: list[dict[str, Any]] = []
    for name, arguments in parameters:
        known = {form.name_key: {"const": name}, form.arguments_key: arguments}
        properties = {key: known.get(key, {"type": "string", "pattern": "^[A-Za-z0-9]{9}$"}) for key in form.keys}
        schemas.append(
            {"type": "object", "properties": properties, "required": [*form.keys], "additionalProperties": False}
        )
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return f"call: %json {json.dumps({**schema, 'x-guidance': _SPACES})}"


class _Literals:
    """Texts in Lark's language. A special token is not the characters of its name; numbers count calls."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {token.content: index for index, token in added.items() if token.special}
        names = sorted(self._special, key=len, reverse=True)
        self._parts = re.compile("|".join([*map(re.escape, names), _ANY_ID, _COUNT.pattern]))

    def __call__(self, text: str) -> str:
        out: list[str] = []
        at = 0
        for found in self._parts.finditer(text):
            out += [json.dumps(text[at : found.start()])] if found.start() > at else []
            name = found.group()
            other = "/[A-Za-z0-9]{9}/" if name == _ANY_ID else "/[0-9]+/"
            out.append(f"<[{self._special[name]}]>" if name in self._special else other)
            at = found.end()
        out += [json.dumps(text[at:])] if at < len(text) else []
        return " ".join(out)


# --- answers


@dataclass(frozen=True)
class Call:
    """arguments: JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: "".join(secrets.choice(_ID) for _ in range(9)))


class CallReader:
    """Finds calls in a text that comes in parts, special tokens among it. names: of the tools."""

    def __init__(self, form: CallForm, names: Sequence[str]) -> None:
        self._form, self._names = form, {*names}
        self._kept, self._is_inside, self._told = "", False, 0
        self.has_calls = False

    def push(self, text: str) -> tuple[str, list[Call]]:
        """(what is certain and content, the calls that are complete)."""
        self._kept += text
        trigger = self._form.trigger
        if not trigger:  # of an answer that is no object nothing need be kept
            opening = self._form.before + "{"
            begins = self._kept.lstrip()[: len(opening)]
            return ("" if opening.startswith(begins) else self._take(len(self._kept))), []
        content, calls = "", list[Call]()
        while True:
            if not self._is_inside:
                place = self._kept.find(trigger)
                if place < 0:
                    return self._trimmed(content + self._take(len(self._kept) - overlap(self._kept, trigger))), calls
                content += self._take(place)
                self._is_inside, self._told = True, 0
            if "}" not in text:
                return self._trimmed(content), calls
            found, end = self._read(self._kept)
            calls += found[self._told :]
            self._told = max(self._told, len(found))
            if not found or end is None or not self._form.after:
                return self._trimmed(content), calls
            self._take(end)
            self._is_inside = False

    def finish(self) -> tuple[str, list[Call]]:
        """The rest. Some models leave out what stands after calls."""
        rest, self._kept = self._kept, ""
        if self._form.trigger and not self._is_inside:
            return self._trimmed(rest), []
        found, _ = self._read(rest)
        return ("" if found else rest), found[self._told :]

    def _read(self, text: str) -> tuple[list[Call], int | None]:
        """(the calls that a text begins with, where it goes on behind all of them; None where that is not there)."""
        form, calls = self._form, list[Call]()
        at = _skipped(text, 0, form.before)
        while at is not None:
            call, at = self._call(text, at)
            if call is None or at is None:
                return calls, None
            calls.append(call)
            self.has_calls = True
            following = None if form.between is None else _skipped(text, at, form.between)
            if following is None or not text[following:].strip():
                return calls, _skipped(text, at, form.after)
            at = following
        return calls, None

    def _call(self, text: str, at: int) -> tuple[Call | None, int | None]:
        form, at = self._form, _behind_spaces(text, at)
        name: Any = None
        if not form.keys:
            found = _NAME.match(text, at)
            # a name may end as the middle begins
            name = found and next(
                (n for n in sorted(self._names, key=len, reverse=True) if text.startswith(n, at)), None
            )
            after_name = None if name is None else _skipped(text, at + len(name), form.middle)
            if after_name is None:
                return None, None
            at = _behind_spaces(text, after_name)
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None, None
        arguments = value
        if form.keys:
            if not isinstance(value, Mapping):
                return None, None
            name, arguments = value.get(form.name_key), value.get(form.arguments_key, {})
        if name not in self._names:
            return None, None
        return Call(name, arguments if isinstance(arguments, str) else json.dumps(arguments)), end

    def _trimmed(self, content: str) -> str:
        """Line breaks between calls are no content."""
        return "" if self.has_calls and not content.strip() else content

    def _take(self, count: int) -> str:
        text, self._kept = self._kept[:count], self._kept[count:]
        return text


def _skipped(text: str, at: int, expected: str) -> int | None:
    """The place behind `expected`; spaces may stand anywhere or be left out, numbers and ids are any."""
    i = 0
    while True:
        i = _behind_spaces(expected, i)
        if i == len(expected):
            return at
        at = _behind_spaces(text, at)
        if at == len(text):
            return None
        if expected[i] == _ANY_ID and text[at].isalnum():
            at, i = _behind(text, at, str.isalnum), i + 1
        elif expected[i].isdigit() and text[at].isdigit():
            at, i = _behind(text, at, str.isdigit), _behind(expected, i, str.isdigit)
        elif expected[i] == text[at]:
            at, i = at + 1, i + 1
        else:
            return None


def _behind(text: str, at: int, belongs: Callable[[str], bool]) -> int:
    return next((i for i in range(at, len(text)) if not belongs(text[i])), len(text))


def _behind_spaces(text: str, at: int) -> int:
    return _behind(text, at, str.isspace)
