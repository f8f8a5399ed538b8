"""A streaming parser of tool calls in an answer that comes in parts.

    CallReader(form, tools).push(text)      ->  (content, parts of calls)

An invalid call, which is not JSON or names no tool, stays part of the content. If a grammar guarantees valid calls,
arguments are reported as they come; otherwise a call is reported when it is complete.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ingot.language.text.generation import overlap
from ingot.serving.openai.calls import ANY_ID, ANY_TYPE, KEY, ByName, CallForm
from ingot.serving.openai.protocol import Tool
from ingot.support.dataclass import dataclass

_ID = string.ascii_letters + string.digits  # Mistral's templates require nine of these
_NAME, _KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}"), re.compile(r"[\w.$-]+")
_DECODER = json.JSONDecoder()
_PYTHON_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_PYTHON_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_MAX_DEPTH = 64  # of nested lists
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_INCOMPLETE = -1  # in place of a position: the text ends before it can be determined


@dataclass(frozen=True)
class CallPart:
    """A part of call number `index`. arguments: the next part of their JSON. name, id: in the first part, else ""."""

    index: int
    arguments: str
    name: str = ""
    id: str = ""


@dataclass(frozen=True)
class _Call:
    """A call, as far as it was received. end: its end in the text; None: it is not complete."""

    name: str
    arguments: str
    end: int | None


class CallReader:
    """Reads the calls in a text with special tokens. is_guarded: a grammar guarantees that the beginning of a call is
    followed by a valid one."""

    def __init__(self, form: CallForm, tools: Sequence[Tool], *, is_guarded: bool = False) -> None:
        self._form, self._is_guarded = form, is_guarded
        self._properties = {tool.function.name: _properties(tool) for tool in tools}
        self._pending, self._is_inside = "", False
        self._is_behind = False  # whether a call precedes: spaces after it are not content
        self._first = 0  # the index of the first call in the kept text
        self._reported_lengths: list[int] = []  # the number of reported characters of each call's arguments

    @property
    def has_calls(self) -> bool:
        return bool(self._reported_lengths)

    def push(self, text: str) -> tuple[str, list[CallPart]]:
        """(text that is certainly content, parts of calls)."""
        self._pending += text
        trigger = self._form.trigger
        if not trigger:  # an answer that is not a call as a whole is content as it comes
            if self._is_guarded:
                return "", self._parts(self._read(self._pending)[0])
            beginning, openings = self._pending.lstrip(), self._openings()
            is_open = any(o.startswith(beginning[: len(o)]) for o in openings)
            return ("" if is_open else self._take(len(self._pending))), []
        content, parts = "", list[CallPart]()
        while True:
            if not self._is_inside:
                place = self._pending.find(trigger)
                content += self._content(len(self._pending) - overlap(self._pending, trigger) if place < 0 else place)
                if place < 0:
                    return content, parts
                self._pending = self._pending[self._pending.find(trigger) :]
                self._is_inside, self._first = True, len(self._reported_lengths)
            if _after(self._pending, 0, self._form.before) is None:
                content += self._content(len(trigger))
                self._is_inside = False
                continue
            calls, end = self._read(self._pending)
            parts += self._parts(calls)
            if not calls or end is None or not self._form.after:
                return content, parts
            self._take(end)
            self._is_inside, self._is_behind = False, True

    def finish(self) -> tuple[str, list[CallPart]]:
        """The rest. Some models omit the mark after calls."""
        rest, self._pending = self._pending, ""
        if self._form.trigger and not self._is_inside:
            return "" if self._is_behind and not rest.strip() else rest, []
        calls, _ = self._read(rest)
        return ("" if calls else rest), self._parts(calls)

    def _openings(self) -> list[str]:
        """The possible beginnings of an answer that is a call."""
        form = self._form
        return [form.before + "{"] if form.keys else [form.before + name for name in self._properties]

    def _parts(self, calls: Sequence[_Call]) -> list[CallPart]:
        """The parts of calls that were not reported yet."""
        parts: list[CallPart] = []
        for index, call in enumerate(calls, self._first):
            if index == len(self._reported_lengths):
                identity = "".join(secrets.choice(_ID) for _ in range(9))
                parts.append(CallPart(index, call.arguments, call.name, identity))
                self._reported_lengths.append(len(call.arguments))
            elif len(call.arguments) > self._reported_lengths[index]:
                parts.append(CallPart(index, call.arguments[self._reported_lengths[index] :]))
                self._reported_lengths[index] = len(call.arguments)
        return parts

    def _read(self, text: str) -> tuple[list[_Call], int | None]:
        """(the calls at the beginning of a text, the end of all of them; None if that was not received yet)."""
        form, calls = self._form, list[_Call]()
        at = _after(text, 0, form.before)
        while at is not None and at != _INCOMPLETE:
            call = self._call(text, at)
            if call is None or (call.end is None and not self._is_guarded):
                return calls, None
            calls.append(call)
            if call.end is None:
                return calls, None
            following = None if form.between is None else _after(text, call.end, form.between)
            if form.by_name and following is None and _after(text, call.end, form.after) is None:
                return calls[:-1], None  # another text follows it
            if following in (None, _INCOMPLETE) or not text[following:].strip():
                end = _after(text, call.end, form.after)
                return calls, None if end == _INCOMPLETE else end
            at = following
        return calls, None

    def _call(self, text: str, at: int) -> _Call | None:
        """The call at a position; None if there is none, or its name is not complete."""
        form, at = self._form, _after_spaces(text, at)
        if form.keys:
            return self._of_keys(text, at)
        # a name may be a prefix of another one, and end with characters that also begin the middle
        names = sorted(self._properties, key=len, reverse=True)
        name = _NAME.match(text, at) and next((n for n in names if text.startswith(n, at)), None)
        if not name:
            return None
        at += len(name)
        if form.by_name is not None:
            arguments = _ByNameReader(form.by_name, form.middle, self._properties[name], text).read(at)
            return None if arguments is None else _Call(name, *arguments)
        after_name = _after(text, at, form.middle)
        if after_name is None:
            return None
        return _Call(
            name, *(("", None) if after_name == _INCOMPLETE else _object(text, _after_spaces(text, after_name)))
        )

    def _of_keys(self, text: str, at: int) -> _Call | None:
        """A call that is a JSON object with a name and arguments."""
        form, name = self._form, ""
        if text[at : at + 1] != "{":
            return None
        document, end = _decoded(text, at)
        if end is not None:
            name = document.get(form.name_key)
            if not isinstance(name, str) or name not in self._properties:
                return None
            arguments = document.get(form.arguments_key, {})
            if isinstance(arguments, str):
                return _Call(name, arguments, end)
        place: int | None = at + 1
        while place is not None:  # a key and its value
            key, place = _decoded(text, _after_spaces(text, place))
            if place is None or not isinstance(key, str):
                break
            place = _end_of_run(text, place, ": \n".__contains__)
            if key == form.arguments_key and name in self._properties:
                return _Call(name, _object(text, place)[0], end)
            value, place = _decoded(text, place)
            name = value if key == form.name_key and isinstance(value, str) else name
            place = None if place is None else _end_of_run(text, place, ", \n".__contains__)
        return None if end is None else _Call(name, "{}", end)

    def _content(self, count: int) -> str:
        """Take `count` characters of the kept text; spaces after a call stay in it."""
        if self._is_behind and not self._pending[:count].strip():
            return ""
        self._is_behind &= not count
        return self._take(count)

    def _take(self, count: int) -> str:
        text, self._pending = self._pending[:count], self._pending[count:]
        return text


class _ByNameReader:
    """Reads arguments by name, as JSON."""

    def __init__(self, form: ByName, middle: str, properties: Mapping[str, Any], text: str) -> None:
        self._form, self._middle, self._properties, self._text = form, middle, properties, text

    def read(self, at: int) -> tuple[str, int | None] | None:
        """(the JSON as far as it is certain, its end or None); None if there are no valid arguments."""
        form, text = self._form, self._text
        begin, place = at, _after(text, at, self._middle)
        if place is None:
            return self._none(begin)
        json_text = "{"
        while place != _INCOMPLETE:
            key_start = _after_spaces(text, place)
            key = _KEY.match(text, key_start)
            if key is None and key_start < len(text):  # what precedes a key may also precede the end
                return self._none(begin) if json_text == "{" else (json_text + "}", at)
            if key is None or key.end() == len(text):
                break
            value = self._value(key.group(), key.end())
            if value is None:
                return None
            json_text += f"{', ' if json_text != '{' else ''}{json.dumps(key.group())}: {value[0]}"
            if value[1] is None:
                return json_text, None
            at = value[1]
            place = _after(text, at, form.following)
            if place is None:
                return json_text + "}", at
        return (json_text if json_text != "{" else ""), None

    def _none(self, at: int) -> tuple[str, int | None] | None:
        """As `read`, without any argument."""
        place = None if self._form.empty is None else _after(self._text, at, self._form.empty)
        return None if place is None else ("{}", place) if place != _INCOMPLETE else ("", None)

    def _value(self, key: str, at: int) -> tuple[str, int | None] | None:
        form, text = self._form, self._text
        of_text, of_other = (_after(text, at, mark) for mark in (form.text_value, form.other_value))
        if of_text is None and of_other is None:
            return None
        if (of_text in (None, _INCOMPLETE)) and (of_other in (None, _INCOMPLETE)):
            return "", None
        if form.quote:
            assert of_other is not None
            try:
                value, end = _Literals(text, form.quote).value(of_other)
            except _IncompleteError:
                return "", None
            except ValueError:
                return None
            return json.dumps(value), end
        schema = self._properties.get(key)
        kind, is_certain = _kind(schema), form.text_value != form.other_value
        is_text = of_other in (None, _INCOMPLETE) or (
            of_text not in (None, _INCOMPLETE) and (is_certain or kind == "string")
        )
        start, mark, opening = (
            (of_text, form.text_end, form.text_value) if is_text else (of_other, form.other_end, form.other_value)
        )
        assert start is not None
        mark = mark.replace(KEY, key)
        tail, space = mark.lstrip(), mark[: len(mark) - len(mark.lstrip())]
        lead = opening[len(opening.rstrip()) :]
        start += len(lead) if lead and text.startswith(lead, start) else 0
        if is_text and text.startswith(_CDATA[: len(text) - start], start):
            return self._cdata(start, mark)
        end = text.find(tail, start)
        value_text = text[start : len(text) - overlap(text[start:], tail) if end < 0 else end]
        if end < 0:  # spaces at the end may belong to the mark
            return (json.dumps(value_text.rstrip() if space else value_text)[:-1] if is_text else ""), None
        value_text = value_text.removesuffix(space)
        value = json.dumps(value_text) if is_text else self._as_json(value_text, schema)
        return value, end + len(tail)

    def _cdata(self, start: int, mark: str) -> tuple[str, int | None] | None:
        """A text as XML quotes one that has marks in it."""
        end = self._text.find(_CDATA_END + mark, start)
        if end < 0:
            return "", None
        return json.dumps(self._text[start + len(_CDATA) : end]), end + len(_CDATA_END + mark)

    def _as_json(self, text: str, schema: Any, depth: int = 0) -> str:
        """A value as JSON; a text that is not JSON becomes a string. Lists and objects may be further arguments."""
        kind = _kind(schema)
        parts = self._parts(text) if self._form.item and depth < _MAX_DEPTH else None
        if parts is not None and (parts or kind in ("array", "object")):
            details: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
            if kind == "array" or (kind != "object" and {key for key, _ in parts} == {self._form.item}):
                return f"[{', '.join(self._as_json(part, details.get('items'), depth + 1) for _, part in parts)}]"
            properties = details.get("properties")
            properties = properties if isinstance(properties, Mapping) else {}
            values = [(json.dumps(k), self._as_json(part, properties.get(k), depth + 1)) for k, part in parts]
            return f"{{{', '.join(f'{k}: {value}' for k, value in values)}}}"
        if kind == "string" and self._form.item:
            return json.dumps(text)
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return _python_as_json(text) if kind in ("array", "object", "boolean", "null") else json.dumps(text)
        return text.strip()

    def _parts(self, text: str) -> list[tuple[str, str]] | None:
        """(key, text) of each argument of which the text consists; None if it is another one."""
        form, parts, at = self._form, list[tuple[str, str]](), _after_spaces(text, 0)
        while at < len(text):
            start = _after(text, at, form.following)
            key = None if start in (None, _INCOMPLETE) else _KEY.match(text, start)
            value_start = key and _after(text, key.end(), form.other_value)
            if key is None or value_start is None or value_start == _INCOMPLETE:
                return None
            mark = form.other_end.replace(KEY, key.group())
            end = _matching_end(text, value_start, form.following + key.group(), mark)
            if end < 0:
                return None
            parts.append((key.group(), text[value_start:end]))
            at = _after_spaces(text, end + len(mark))
        return parts


def _matching_end(text: str, at: int, opening: str, mark: str) -> int:
    """The position of the end mark that closes a value, in which others of its name may be; -1 if there is none."""
    depth = 1
    for match in re.compile(f"{re.escape(opening)}(?![\\w.$-])|{re.escape(mark)}").finditer(text, at):
        depth += 1 if match.group() == opening else -1
        if not depth:
            return match.start()
    return -1


def _python_as_json(text: str) -> str:
    """Templates that print values as they are have taught models Python's notation. Any other text is a string."""
    try:
        value, end = _Literals(text + " ", "'").value(0)
    except (ValueError, _IncompleteError):
        return json.dumps(text)
    return json.dumps(text if text[end:].strip() else value)


def _kind(schema: Any) -> str:
    return str(schema.get("type", "")) if isinstance(schema, Mapping) else ""


class _IncompleteError(Exception):
    """The text ends within a value."""


class _Literals:
    """Reads values in Python's notation, or with another mark around texts, whose objects then have bare keys."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote = text, quote

    def value(self, position: int, depth: int = 0) -> tuple[Any, int]:
        """(a value, its end). Raises ValueError if there is none, _IncompleteError if the text ends within it."""
        text, position = self._text, _after_spaces(self._text, position)
        if position == len(text) or (text[position:] != self._quote and self._quote.startswith(text[position:])):
            raise _IncompleteError
        if self._quote != "'" and text.startswith(self._quote, position):
            start = position + len(self._quote)
            end = text.find(self._quote, start)
            if end < 0:
                raise _IncompleteError
            return text[start:end], end + len(self._quote)
        if self._quote == "'" and text[position] in "'\"":
            match = _PYTHON_TEXT.match(text, position)
            if match is None:
                raise _IncompleteError
            return ast.literal_eval(match.group().replace("\n", "\\n")), match.end()
        if text[position] in "[{":
            if depth == _MAX_DEPTH:
                raise ValueError("lists in lists")
            return self._collection(position, depth + 1)
        end = _end_of_run(text, position, lambda c: c.isalnum() or c in "+-._")
        if end == len(text):
            raise _IncompleteError
        word = text[position:end]
        return (_PYTHON_WORDS[word] if word in _PYTHON_WORDS else json.loads(word)), end

    def _key(self, at: int, depth: int) -> tuple[Any, int]:
        match = None if self._quote == "'" else _KEY.match(self._text, at)
        if match is None:
            return self.value(at, depth)
        if match.end() == len(self._text):
            raise _IncompleteError
        return match.group(), match.end()

    def _collection(self, at: int, depth: int) -> tuple[Any, int]:
        text = self._text
        is_list, close = text[at] == "[", "]" if text[at] == "[" else "}"
        items: list[Any] = []
        at = _after_spaces(text, at + 1)
        while not text.startswith(close, at):
            if items:
                at = _expected(text, at, ",")
                if text.startswith(close, at):
                    break
            item, at = self.value(at, depth) if is_list else self._key(at, depth)
            if not is_list:
                value, at = self.value(_expected(text, at, ":"), depth)
                item = str(item), value
            items.append(item)
            at = _after_spaces(text, at)
        return (items if is_list else dict(items)), at + 1


def _expected(text: str, at: int, mark: str) -> int:
    at = _after_spaces(text, at)
    if at == len(text):
        raise _IncompleteError
    if text[at] != mark:
        raise ValueError(mark)
    return _after_spaces(text, at + 1)


def _decoded(text: str, at: int) -> tuple[Any, int | None]:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, None


def _object(text: str, at: int) -> tuple[str, int | None]:
    """(a JSON object as far as it was received, its end or None)."""
    value, end = _decoded(text, at)
    return text[at:end] if end is None or isinstance(value, Mapping) else "", end


def _properties(tool: Tool) -> Mapping[str, Any]:
    properties = (tool.function.parameters or {}).get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _after(text: str, at: int, expected: str) -> int | None:
    """The position after `expected`, in which spaces are optional and numbers and ids match any. None if the text
    differs, _INCOMPLETE if it ends too early."""
    i = 0
    while True:
        i = _after_spaces(expected, i)
        if i == len(expected):
            return at
        at = _after_spaces(text, at)
        if at == len(text):
            return _INCOMPLETE
        if expected[i] in (ANY_ID, ANY_TYPE) and text[at].isalnum():
            at, i = _end_of_run(text, at, str.isalnum), i + 1
        elif expected[i].isdigit() and text[at].isdigit():
            at, i = _end_of_run(text, at, str.isdigit), _end_of_run(expected, i, str.isdigit)
        elif expected[i] == text[at]:
            at, i = at + 1, i + 1
        else:
            return None


def _end_of_run(text: str, at: int, belongs: Callable[[str], bool]) -> int:
    return next((i for i in range(at, len(text)) if not belongs(text[i])), len(text))


def _after_spaces(text: str, at: int) -> int:
    return _end_of_run(text, at, str.isspace)
