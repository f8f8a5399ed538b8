"""The syntax of a model's tool calls.

form = call_form(render, tokenizer)        inferred from the chat template's rendering of a few calls

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
_PROBE_WORDS = (
    "probe",
    "count",
    "number",
    "integer",
)  # parts of the probes: an inferred form must not contain them
_TEXT_KEY, _NUMBER_KEY, _NUMBER = "probe", "count", 75310
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {
        "type": "object", "required": [_TEXT_KEY],
        "properties": {_TEXT_KEY: {"type": "string"}, _NUMBER_KEY: {"type": "integer"}}}}}
    for name in _NAMES
]  # fmt: skip
_TRIGGER = re.compile(r"<[^<>\s]+>|\[\w+\]|[<\[]?[^\s{\[<]+")
_IDS, ANY_ID = ("probe0000", "probe0001"), "\0"  # a call's id in a form
_TEXT = "probe answer"
COUNT = re.compile(r"(?<=:)\d+")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class ByName:
    """The syntax of arguments that are written one by one, each after its name.

    text_value, other_value: between name and value, for texts and for others (numbers, lists). text_end, other_end:
    after the value. following: after that, before the next name. empty: in place of all arguments if there are none;
    None: unknown. is_python: whether values are in Python's notation; otherwise texts are verbatim, others JSON.
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
    """before, between, after: the texts around calls; between is None if there is at most one call. trigger: the
    beginning of `before` that distinguishes calls from text; "": an answer with a call has no other text.

    keys: of the JSON object that is a call, in order; name_key, arguments_key: two of them. Without keys a call is the
    name, `middle`, and its arguments, as an object or `by_name`. takes_text: whether the template takes arguments as
    text, not as an object.
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
        match = _TRIGGER.match(self.before)
        return "" if match is None else match.group()


def call_form(render: Render, tokenizer: Tokenizer) -> CallForm:
    """The form of calls. Raises OpenAIError (400) for a template without tools, or with an unknown form of calls."""
    user = [{"role": "user", "content": "probe"}]
    try:
        prompt = render(user, _TOOLS)
    except InputError:
        prompt = ""
    if _NAMES[0] not in prompt:
        raise OpenAIError(400, "the model's chat template has no tools", param="tools", code="unsupported_parameter",
                          fix="leave tools out, or serve it with a --template that has them")  # fmt: skip
    probe = _Probe(render, tokenizer, user, prompt)
    if (form := _form_by_name(probe)) is not None:
        return form
    one = probe.calls(1, takes_text=False)
    takes_text = one is None or str(_ARGUMENTS[0]) in one  # refused, or in Python's notation
    one = probe.calls(1, takes_text=True) if takes_text else one
    form = None if one is None else _form(one, probe.calls(2, takes_text=takes_text), takes_text)
    if form is not None:
        return form
    raise OpenAIError(400, "the model's chat template", expected="calls of tools as JSON, XML or Python",
                      got="another form of calls", param="tools", code="unsupported_parameter")  # fmt: skip


@dataclass(frozen=True)
class _Probe:
    """Renders answers as a template writes them into the history. prompt: the text before one."""

    render: Render
    tokenizer: Tokenizer
    user: list[dict[str, str]]
    prompt: str

    def calls(self, count: int, *, takes_text: bool) -> str | None:
        """An answer with this number of calls, without the texts before and after any answer; None if it is refused."""
        return self.calls_with([json.dumps(a) if takes_text else a for a in _ARGUMENTS[:count]])

    def calls_with(self, arguments: Sequence[Any]) -> str | None:
        """An answer with a call for each of these arguments."""
        calls = [
            {"id": _IDS[i], "type": "function", "function": {"name": _NAMES[i], "arguments": argument}}
            for i, argument in enumerate(arguments)
        ]
        answer = self._answer({"content": "", "tool_calls": calls})
        text = self._answer({"content": _TEXT}) or ""
        opening = text.partition(_TEXT)[0] if _TEXT in text else ""
        return answer and answer.removeprefix(opening)

    def _answer(self, message: dict[str, Any]) -> str | None:
        try:
            text = self.render([*self.user, {"role": "assistant", **message}], _TOOLS, add_generation_prompt=False)
        except InputError:
            return None
        pairs = enumerate(zip(text, self.prompt, strict=False))
        common = next((i for i, (a, b) in pairs if a != b), min(len(text), len(self.prompt)))
        mark = max(text.rfind("<", 0, common), text.rfind("[", 0, common))
        if mark >= 0 and not re.search(r"[>\]]", text[mark:common]):  # two marks with a common prefix
            common = mark
        answer = text[common:]
        ends = [place for i in self.tokenizer.end_ids if (place := answer.find(self.tokenizer.token(i))) >= 0]
        return answer[: min(ends)] if ends else answer


@dataclass(frozen=True)
class _Place:
    """The position of a call in an answer, and its parts."""

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
            name_start = answer.rfind(name, start, begin)
            return None if name_start < 0 else _Place(name_start, end, middle=answer[name_start + len(name) : begin])
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
    """The text with placeholders for ids and for numbers that count calls."""
    for index in _IDS:
        text = text.replace(index, ANY_ID)
    return COUNT.sub("0", text)


def _form_by_name(probe: _Probe) -> CallForm | None:
    """The form of arguments that are written one by one; its parts are those common to answers with other arguments."""
    text, number = {_TEXT_KEY: "one"}, {_NUMBER_KEY: _NUMBER}
    no_arguments, one, two = probe.calls_with([{}]), probe.calls_with([text]), probe.calls_with([text, text])
    number_last, text_last = probe.calls_with([text | number]), probe.calls_with([number | text])
    if one is None or number_last is None or text_last is None:
        return None
    words = [_NAMES[0], _TEXT_KEY, "one"]
    numbers = [_NUMBER_KEY, str(_NUMBER)]
    if (first := _parts_around(one, words)) is None or any(c in first[1] for c in "{"):
        return None
    before, middle, text_value, rest = first
    last = _parts_around(number_last, [*words, *numbers]), _parts_around(text_last, [words[0], *numbers, *words[1:]])
    if last[0] is None or last[1] is None:
        return None
    *_, text_next, other_value, other_rest = last[0]
    other_next = last[1][3]
    (text_end, after), (other_end, other_after) = _common_mark(rest, text_next), _common_mark(other_rest, other_next)
    following = text_next[len(text_end) :]
    if other_after != after or other_next[len(other_end) :] != following:
        return None
    quote = text_value.removeprefix(other_value)
    is_python = quote in ("'", '"') and text_end == quote and not other_end
    if not is_python and not (text_end.strip() and other_end.strip()):
        return None
    bare = None if no_arguments is None else _parts_around(no_arguments, [_NAMES[0]])
    empty = bare[1].removesuffix(after) if bare and bare[1].endswith(after) else None
    between = None
    if (
        two is not None
        and (two_parts := _parts_around(two, [*words, _NAMES[1], *words[1:]]))
        and two_parts[3].startswith(text_end)
    ):
        between = two_parts[3][len(text_end) :]
    if is_python:
        text_value, text_end = other_value, ""
    parts = (middle, text_value, other_value, text_end, other_end, following)
    if any(word in part for part in parts for word in _PROBE_WORDS):
        return None
    form = ByName(text_value, other_value, text_end, other_end, following, empty, is_python)
    return CallForm(before.lstrip(), between, after.rstrip(), middle=middle, by_name=form)


def _parts_around(answer: str, words: Sequence[str]) -> list[str] | None:
    """The texts before, between and after consecutive words; None if one is missing."""
    parts: list[str] = []
    for word in words:
        part, separator, answer = answer.partition(word)
        if not separator:
            return None
        parts.append(part)
    return [*parts, answer]


def _common_mark(rest: str, other: str) -> tuple[str, str]:
    """(the common prefix, up to the end of a mark; the rest of the first text)."""
    length = next((i for i, (a, b) in enumerate(zip(rest, other, strict=False)) if a != b), min(len(rest), len(other)))
    end = max(rest.rfind(c, 0, length) for c in ">]") + 1 or (length if "<" not in rest[:length] else 0)
    return rest[:end], rest[end:]
