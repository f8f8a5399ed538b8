"""The syntax of a model's tool calls.

form = call_form(render, tokenizer)        inferred from the chat template's rendering of a few calls

<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>      before, a call, after
[TOOL_CALLS]add[ARGS]{"a": 1}                                          before, name, middle, arguments
<function=add><parameter=a>1</parameter></function>                    arguments by name, as in XML
[add(a=1, b='x')], call:add{a:1,b:<|"|>x<|"|>}                         the same, with marks around texts
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
    "number",
    "total",
    "integer",
)  # parts of the probes: an inferred form must not contain them
# in the order of the alphabet, too, which some templates sort by
_TEXT_KEY, _EARLIER_KEY, _LATER_KEY, _NUMBER = "probe", "number", "total", 75310
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {
        "type": "object", "required": [_TEXT_KEY],
        "properties": {key: {"type": "string" if key == _TEXT_KEY else "integer", "description": "a"}
                       for key in (_TEXT_KEY, _EARLIER_KEY, _LATER_KEY)}}}}
    for name in _NAMES
]  # fmt: skip
_TRIGGER = re.compile(r"<[^<>\s]+>|\[\w+\]|[<\[]?[^\s{\[<]+")
_IDS = ("probe0000", "probe0001")
# placeholders in a form: a call's id, the type of an argument's value, its key
ANY_ID, ANY_TYPE, KEY = "\0", "\1", "\2"
_TEXT = "probe answer"
COUNT = re.compile(r'(?<=:)\d+|(?<==")\d+(?=")')
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class ByName:
    """The syntax of arguments that are written one by one, each after its name.

    text_value, other_value: between name and value, for texts and for others (numbers, lists). text_end, other_end:
    after the value. following: after that, before the next name. empty: in place of all arguments if there are none;
    None: unknown. quote: the mark around texts within values, "'" for Python's notation; "": texts are verbatim and
    others JSON. item: the name of a list's elements, if lists and objects are written as further arguments by name.
    """

    text_value: str
    other_value: str
    text_end: str
    other_end: str
    following: str
    empty: str | None
    quote: str = ""
    item: str = ""

    @property
    def is_python(self) -> bool:
        return self.quote == "'"


@dataclass(frozen=True)
class CallForm:
    """before, between, after: the texts around calls; between is None if there is at most one call. trigger: the
    beginning of `before` that distinguishes calls from text; "": an answer with a call has no other text.

    keys: of the JSON object that is a call, in order; name_key, arguments_key: two of them. Without keys a call is the
    name, `middle`, and its arguments, as an object or `by_name`. takes_text: whether the template takes arguments as
    text, not as an object. in_content: whether it takes calls only as part of the content (`calls_text`). long_trigger:
    the trigger, if the first mark of `before` is in any answer. lists_tools: whether the template tells the model which
    tools there are; else the system message has to (`instructions`).
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
    in_content: bool = False
    long_trigger: str = ""
    lists_tools: bool = True

    @property
    def trigger(self) -> str:
        if self.long_trigger:
            return self.long_trigger
        match = _TRIGGER.match(self.before)
        return "" if match is None else match.group()

    def calls_text(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """(name, arguments) of each call as an answer has them, in a form with keys or in Python's notation."""
        if self.by_name is None:
            texts = [json.dumps({self.name_key: name, self.arguments_key: arguments}) for name, arguments in calls]
        else:
            mark, following = self.by_name.other_value, self.by_name.following
            values = [following.join(f"{key}{mark}{value!r}" for key, value in call[1].items()) for call in calls]
            texts = [name + self.middle + value for (name, _), value in zip(calls, values, strict=True)]
        return self.before + (self.between or "").join(texts) + self.after

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """The tools and the form of a call, which is JSON or has JSON arguments, for a system message: the layout that
        DeepSeek documents for V3.1."""
        lines = ["## Tools", "You have access to the following tools:", ""]
        for function in (tool["function"] for tool in tools):
            lines += [f"### {function['name']}", f"Description: {function.get('description', '')}", ""]
            lines += [f"Parameters: {json.dumps(function.get('parameters', {}))}", ""]
        name, arguments = "tool_call_name", "tool_call_arguments"
        values = {self.name_key: json.dumps(name), self.arguments_key: arguments}
        fields = ", ".join(f"{json.dumps(key)}: {values.get(key, json.dumps(_IDS[0]))}" for key in self.keys)
        call = f"{{{fields}}}" if self.keys else name + self.middle + arguments
        form = (self.before + call + self.after).replace(ANY_ID, _IDS[0])
        lines += ["IMPORTANT: ALWAYS adhere to this exact format for tool use:", form]
        return "\n".join(lines)


# of models whose templates list tools but leave calls in the content, by a mark of their prompts or vocabularies
_KEYS = ("name", "arguments")
_KNOWN_FORMS = {
    "<|tool_call_start|>": CallForm(
        "<|tool_call_start|>[", "), ", ")]<|tool_call_end|>", middle="(",
        by_name=ByName("=", "=", "", "", ", ", "(", quote="'"), in_content=True,
    ),
    "<|tool_call|>": CallForm("<|tool_call|>[", ", ", "]", _KEYS, *_KEYS, in_content=True),
}  # fmt: skip


def call_form(render: Render, tokenizer: Tokenizer) -> CallForm:
    """The form of calls. Raises OpenAIError (400) for a template without tools, or with an unknown form of calls."""
    user = [{"role": "user", "content": "probe"}]
    try:
        prompt = render(user, _TOOLS)
    except InputError:
        prompt = ""
    lists_tools = _NAMES[0] in prompt
    probe = _Probe(render, tokenizer, user, prompt)
    if (form := _form_by_name(probe)) is not None and lists_tools:
        return probe.distinguished(form)
    one = probe.calls(1, takes_text=False)
    takes_text = one is None or str(_ARGUMENTS[0]) in one  # refused, or in Python's notation
    one = probe.calls(1, takes_text=True) if takes_text else one
    form = None if one is None else _form(one, probe.calls(2, takes_text=takes_text), takes_text)
    if form is not None and (lists_tools or probe.has_system_messages):
        return probe.distinguished(replace(form, lists_tools=lists_tools))
    if not lists_tools:
        raise OpenAIError(400, "the model's chat template has no tools", param="tools", code="unsupported_parameter",
                          fix="leave tools out, or serve it with a --template that has them")  # fmt: skip
    marks = (mark for mark in _KNOWN_FORMS if mark in prompt or tokenizer.backend.token_to_id(mark) is not None)
    if _NAMES[0] not in (one or "") and (mark := next(marks, None)):
        return _KNOWN_FORMS[mark]
    raise OpenAIError(400, "the model's chat template", expected="calls of tools as JSON, XML or Python",
                      got="another form of calls", param="tools", code="unsupported_parameter")  # fmt: skip


@dataclass(frozen=True)
class _Probe:
    """Renders answers as a template writes them into the history. prompt: the text before one."""

    render: Render
    tokenizer: Tokenizer
    user: list[dict[str, str]]
    prompt: str

    @property
    def has_system_messages(self) -> bool:
        try:
            return _TEXT in self.render([{"role": "system", "content": _TEXT}, *self.user], None)
        except InputError:
            return False

    def distinguished(self, form: CallForm) -> CallForm:
        """The form with a trigger that answers without calls do not have, by further marks of `before`."""
        frame = self._answer({"content": _TEXT}) or ""
        ends = [match.end() for match in re.finditer(r"[>\]]", form.before)]
        triggers = (form.before[:end] for end in ends if end > len(form.trigger))
        if not form.trigger or form.trigger not in frame:
            return form
        return replace(form, long_trigger=next((t for t in triggers if t not in frame), ""))

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
        opening, _, closing = (self._answer({"content": _TEXT}) or _TEXT).partition(_TEXT)
        if answer is None:
            return None
        answer = answer.removeprefix(opening)
        begin = answer.rfind(">", 0, _common(answer, closing)) + 1
        begin = begin if answer.startswith("<", begin) else 0
        end = len(answer) - _common(answer[::-1], closing[::-1])
        while end < len(answer) and (answer[end] not in "<[\n" or answer[end - 1].isalnum()):
            end += 1
        return answer[begin:end]

    def _answer(self, message: dict[str, Any]) -> str | None:
        try:
            text = self.render([*self.user, {"role": "assistant", **message}], _TOOLS, add_generation_prompt=False)
        except InputError:
            return None
        common = _common(text, self.prompt)
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


def _common(a: str, b: str) -> int:
    """The length of the common prefix."""
    return next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))


def _form_by_name(probe: _Probe) -> CallForm | None:
    """The form of arguments that are written one by one; its parts are those common to answers with other arguments."""
    text = {_TEXT_KEY: "one"}
    no_arguments, one, two = probe.calls_with([{}]), probe.calls_with([text]), probe.calls_with([text, text])
    number_last = probe.calls_with([{**text, _LATER_KEY: _NUMBER}])
    text_last = probe.calls_with([{_EARLIER_KEY: _NUMBER, **text}])
    if one is None or number_last is None or text_last is None:
        return None
    words = [_NAMES[0], _TEXT_KEY, "one"]
    if (first := _parts_around(one, words)) is None or re.search(r"""\{\s*["']""", first[1]):
        return None
    before, middle, text_value, rest = first
    last_number = _parts_around(number_last, [*words, _LATER_KEY, str(_NUMBER)])
    last_text = _parts_around(text_last, [words[0], _EARLIER_KEY, str(_NUMBER), *words[1:]])
    if last_number is None or last_text is None:
        return None
    text_next, other_value, other_rest = (part.replace(_LATER_KEY, KEY) for part in last_number[3:])
    rest, text_next = rest.replace(_TEXT_KEY, KEY), text_next.replace(_TEXT_KEY, KEY)
    other_next = last_text[3].replace(_EARLIER_KEY, KEY)
    (text_end, after), (other_end, other_after) = _common_mark(rest, text_next), _common_mark(other_rest, other_next)
    following = text_next[len(text_end) :]
    if other_after != after or other_next[len(other_end) :] != following:
        return None
    mark = text_value.removeprefix(other_value)
    quote = "" if text_end != mark or other_end else "'" if mark == '"' else mark
    if not quote and not (text_end.strip() and other_end.strip()):
        return None
    yes = probe.calls_with([{_TEXT_KEY: True}])
    if yes and (kind := _other_type(other_value, _parts_around(yes, [*words[:2], "true"]))):
        other_value = kind
    bare = None if no_arguments is None else _parts_around(no_arguments, [_NAMES[0]])
    empty = bare[1].removesuffix(after) if bare and bare[1].endswith(after) else None
    between, item = None, _item(probe.calls_with([{_TEXT_KEY: ["one"]}]), other_value, following, other_end)
    if (
        two is not None
        and (two_parts := _parts_around(two, [*words, _NAMES[1], *words[1:]]))
        and two_parts[3].startswith(end := text_end.replace(KEY, _TEXT_KEY))
    ):
        between = two_parts[3][len(end) :]
    if quote:
        text_value, text_end = other_value, ""
    parts = (middle, text_value, other_value, text_end, other_end, following)
    if any(word in part for part in parts for word in _PROBE_WORDS):
        return None
    form = ByName(text_value, other_value, text_end, other_end, following, empty and _shape(empty), quote, item)
    between = between and _shape(between)
    return CallForm(_shape(before).lstrip(), between, after.rstrip(), middle=_shape(middle), by_name=form)


def _other_type(other_value: str, parts: list[str] | None) -> str:
    """`other_value` of numbers with a placeholder for the type's name, if that of bools differs in it; else ""."""
    value = parts[2] if parts else other_value
    begin, end = _common(value, other_value), _common(value[::-1], other_value[::-1])
    words = [v[begin : len(v) - end] for v in (value, other_value)]
    return (
        other_value[:begin] + ANY_TYPE + other_value[len(other_value) - end :] if all(map(str.isalpha, words)) else ""
    )


def _item(answer: str | None, value_mark: str, open_mark: str, end_mark: str) -> str:
    """The name of a list's elements, if they are written as arguments by name are; else ""."""
    opening, closing = map(re.escape, (value_mark + open_mark, value_mark + "one" + end_mark))
    match = re.search(opening + r"(\w+)" + closing.replace(KEY, r"\1"), answer or "")
    return match.group(1) if match and match.group(1) != _TEXT_KEY else ""


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
    length = _common(rest, other)
    if KEY in rest[:length]:
        end = rest.find(">", rest.find(KEY), length) + 1
        return rest[:end], rest[end:]
    end = max(rest.rfind(c, 0, length) for c in ">]") + 1 or (length if "<" not in rest[:length] else 0)
    return rest[:end], rest[end:]
