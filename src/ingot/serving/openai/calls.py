"""Calls of tools: how a model writes them.

form = call_form(render, tokenizer)        learned from what the chat template makes of a few calls

<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>      before, a call, after
[TOOL_CALLS]add[ARGS]{"a": 1}                                          before, name, middle, arguments
<function=add><parameter=a>1</parameter></function>                    arguments by name, as in XML
[add(a=1, b='x')]                                                      the same, as in Python
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from ingot.language.text.tokenizer import Tokenizer
from ingot.serving.openai.errors import OpenAIError
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

Render = Callable[..., str]  # (messages, tools, **values) -> text
_NAMES = ("first_probe", "second_probe")
_ARGUMENTS = ({"probe": "one"}, {"probe": "two"})
_TOLD = ("probe", "count", "number", "integer")  # what no form has: names and types that differ from call to call
_TEXT_KEY, _NUMBER_KEY, _NUMBER = "probe", "count", 75310
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {
        "type": "object", "required": [_TEXT_KEY],
        "properties": {_TEXT_KEY: {"type": "string"}, _NUMBER_KEY: {"type": "integer"}}}}}
    for name in _NAMES
]  # fmt: skip
_TRIGGER = re.compile(r"<[^<>\s]+>|\[\w+\]|[<\[]?[^\s{\[<]+")
_IDS, ANY_ID = ("probe0000", "probe0001"), "\0"  # what stands for a call's id in a form
_TEXT = "probe answer"
COUNT = re.compile(r"(?<=:)\d+")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class ByName:
    """Arguments that are written one by one, each behind its name: of texts and of others (numbers, lists) what stands
    between name and value, and behind the value.

    following: behind that, in front of the next name. empty: in place of all of it where a call has no arguments; None:
    unknown. is_python: values are written as Python has them; else texts as they are, others as JSON.
    """

    text_value: str
    other_value: str
    text_end: str
    other_end: str
    following: str
    empty: str | None
    is_python: bool


@dataclass(frozen=True)
class CallForm:
    """before, between, after: what stands around calls; between is None where there is one at most. trigger: what
    `before` begins with in an answer that may be a text; "": such an answer is a call as a whole.

    keys: of the JSON object that is a call, in order; name_key, arguments_key: two of them. Without keys a call is the
    name, `middle`, and its arguments: an object, or the first of them `by_name`. takes_text: whether the template takes
    arguments as text, not as an object.
    """

    before: str
    between: str | None
    after: str
    keys: tuple[str, ...] = ()
    name_key: str = ""
    arguments_key: str = ""
    middle: str = ""
    takes_text: bool = False
    by_name: ByName | None = None

    @property
    def trigger(self) -> str:
        found = _TRIGGER.match(self.before)
        return "" if found is None else found.group()


def call_form(render: Render, tokenizer: Tokenizer) -> CallForm:
    """Raises OpenAIError (400) for a template that writes no tools, or calls in a form that is not known."""
    user = [{"role": "user", "content": "probe"}]
    try:
        prompt = render(user, _TOOLS)
    except InputError:
        prompt = ""
    if _NAMES[0] not in prompt:
        raise OpenAIError(400, "the model's chat template has no tools", param="tools", code="unsupported_parameter",
                          fix="leave tools out, or serve it with a --template that has them")  # fmt: skip
    ask = _Probe(render, tokenizer, user, prompt)
    if (form := _form_by_name(ask)) is not None:
        return form
    one = ask.calls(1, takes_text=False)
    takes_text = one is None or str(_ARGUMENTS[0]) in one  # refused, or written as Python has it
    one = ask.calls(1, takes_text=True) if takes_text else one
    form = None if one is None else _form(one, ask.calls(2, takes_text=takes_text), takes_text)
    if form is not None:
        return form
    raise OpenAIError(400, "the model's chat template", expected="calls of tools as JSON, XML or Python",
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
        return self.calls_with([json.dumps(a) if takes_text else a for a in _ARGUMENTS[:count]])

    def calls_with(self, arguments: Sequence[Any]) -> str | None:
        """Of a call with each of these arguments."""
        calls = [
            {"id": _IDS[i], "type": "function", "function": {"name": _NAMES[i], "arguments": own}}
            for i, own in enumerate(arguments)
        ]
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
        text = text.replace(index, ANY_ID)
    return COUNT.sub("0", text)


def _form_by_name(ask: _Probe) -> CallForm | None:
    """The form of arguments that are written one by one. Each part is what answers with other arguments share."""
    text, number = {_TEXT_KEY: "one"}, {_NUMBER_KEY: _NUMBER}
    none, one, two = ask.calls_with([{}]), ask.calls_with([text]), ask.calls_with([text, text])
    number_last, text_last = ask.calls_with([text | number]), ask.calls_with([number | text])
    if one is None or number_last is None or text_last is None:
        return None
    words = [_NAMES[0], _TEXT_KEY, "one"]
    numbers = [_NUMBER_KEY, str(_NUMBER)]
    if (first := _cut(one, words)) is None or any(c in first[1] for c in "{"):
        return None
    before, middle, text_value, rest = first
    last = _cut(number_last, [*words, *numbers]), _cut(text_last, [words[0], *numbers, *words[1:]])
    if last[0] is None or last[1] is None:
        return None
    *_, text_next, other_value, other_rest = last[0]
    other_next = last[1][3]
    (text_end, after), (other_end, other_after) = _shared(rest, text_next), _shared(other_rest, other_next)
    following = text_next[len(text_end) :]
    if other_after != after or other_next[len(other_end) :] != following:
        return None
    quote = text_value.removeprefix(other_value)
    is_python = quote in ("'", '"') and text_end == quote and not other_end
    if not is_python and not (text_end.strip() and other_end.strip()):
        return None
    bare = None if none is None else _cut(none, [_NAMES[0]])
    empty = bare[1].removesuffix(after) if bare and bare[1].endswith(after) else None
    between = None
    if two is not None and (both := _cut(two, [*words, _NAMES[1], *words[1:]])) and both[3].startswith(text_end):
        between = both[3][len(text_end) :]
    if is_python:
        text_value, text_end = other_value, ""
    parts = (middle, text_value, other_value, text_end, other_end, following)
    if any(word in part for part in parts for word in _TOLD):
        return None
    form = ByName(text_value, other_value, text_end, other_end, following, empty, is_python)
    return CallForm(before.lstrip(), between, after.rstrip(), middle=middle, by_name=form)


def _cut(answer: str, words: Sequence[str]) -> list[str] | None:
    """What stands around words that follow each other; None where one is not there."""
    parts: list[str] = []
    for word in words:
        part, found, answer = answer.partition(word)
        if not found:
            return None
        parts.append(part)
    return [*parts, answer]


def _shared(rest: str, other: str) -> tuple[str, str]:
    """(what both begin with, to the end of a mark; the rest of the first)."""
    length = next((i for i, (a, b) in enumerate(zip(rest, other, strict=False)) if a != b), min(len(rest), len(other)))
    end = max(rest.rfind(c, 0, length) for c in ">]") + 1 or (length if "<" not in rest[:length] else 0)
    return rest[:end], rest[end:]
