"""Separation of a model's thoughts from its answer.

<think>\nIs it?\n</think>\n\nIt is.      ->      reasoning_content "Is it?", content "It is."

The same of answers that have marks, too: <|close|>think<|sep|><|open|>response<|sep|>It is.<|close|>response<|sep|>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ingot.language.text.generation import overlap
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z]+\]")
_THOUGHT, _ANSWER = "probe thought", "probe answer"
# marks in templates that omit thoughts from the history
_KNOWN_MARKS = (
    ("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)  # fmt: skip


@dataclass(frozen=True)
class Reasoning:
    """begin, end: the marks around a thought. answer_begin, answer_end: those around the answer behind it; "": none."""

    begin: str
    end: str
    answer_begin: str = ""
    answer_end: str = ""

    def is_begun(self, prompt: str) -> bool:
        """Whether the prompt ends with the beginning of a thought."""
        return prompt.rstrip().endswith(self.begin)


def reasoning_of(render: Callable[..., str], source: str) -> Reasoning | None:
    """The marks that a chat template with this source writes around a thought; None for a model without thoughts."""
    user = {"role": "user", "content": "probe"}
    try:
        answer = {"role": "assistant", "content": _ANSWER, "reasoning_content": _THOUGHT}
        text = render([user, answer], None, add_generation_prompt=False)
    except InputError:
        text = ""
    before, is_told, rest = text.partition(_THOUGHT)
    between, is_answered, behind = rest.partition(_ANSWER)
    if is_answered and (named := _named_marks(before, between, behind)) is not None:
        return named
    begin_marks, end_marks = _MARK.findall(before), _MARK.findall(between)
    if is_told and is_answered and len(end_marks) == 1 and begin_marks and before.rstrip().endswith(begin_marks[-1]):
        return Reasoning(begin_marks[-1], end_marks[0])
    return next((Reasoning(*pair) for pair in _KNOWN_MARKS if pair[0] in source and pair[1] in source), None)


def _named_marks(before: str, between: str, behind: str) -> Reasoning | None:
    """The marks of parts that are each written between two tokens around their name, if the texts around a thought and
    an answer have such."""
    if (opening := re.search(r"(<[^<>\s]+>)(\w+)(<[^<>\s]+>)\s*$", before)) is None:
        return None
    open_mark, name, separator = opening.groups()
    closing = re.match(rf"\s*(<[^<>\s]+>){name}{re.escape(separator)}", between)
    if closing is None:
        return None
    form = Reasoning(open_mark + name + separator, closing.group(1) + name + separator)
    answer = re.fullmatch(rf"\s*{re.escape(open_mark)}(\w+){re.escape(separator)}\s*", between[closing.end() :])
    if answer is None:
        return form
    answer_begin, answer_end = (mark + answer.group(1) + separator for mark in (open_mark, closing.group(1)))
    return replace(form, answer_begin=answer_begin, answer_end=answer_end) if answer_end in behind else form


class ReasoningReader:
    """Divides a text that comes in parts into thought and answer. is_begun: whether it begins within a thought."""

    def __init__(self, form: Reasoning, *, is_begun: bool) -> None:
        self._form, self._pending = form, ""
        self._place = "thought" if is_begun else "start"  # then "behind" a thought, in front of the "answer"
        self._has_thought, self._has_end = False, bool(form.answer_end)

    def push(self, text: str) -> tuple[str, str]:
        """(new text of the thought, new text of the answer), as far as they are certain."""
        self._pending += text
        thought = ""
        if self._place == "start":
            beginning = self._pending.lstrip()
            if beginning.startswith(self._form.begin):
                self._place, self._pending = "thought", beginning[len(self._form.begin) :]
            elif self._form.answer_begin and beginning.startswith(self._form.answer_begin):
                self._place, self._pending = "answer", beginning[len(self._form.answer_begin) :]
            elif self._form.begin.startswith(beginning) or self._form.answer_begin.startswith(beginning):
                return "", ""
            else:
                self._place = "answer"
        if self._place == "thought":
            thought, is_end, rest = self._pending.partition(self._form.end)
            if is_end:
                self._place, self._pending, thought = "behind", rest, thought.rstrip()
            else:
                certain = thought[: len(thought) - overlap(thought, self._form.end)].rstrip()
                thought, self._pending = certain, thought[len(certain) :]
            if not self._has_thought:  # line breaks before the thought are not part of it
                thought = thought.lstrip()
            self._has_thought |= bool(thought)
        if self._place == "behind":
            self._pending = self._pending.lstrip()
            mark = self._form.answer_begin
            is_open = not self._pending or (mark.startswith(self._pending) and self._pending != mark)
            self._place = "behind" if is_open else "answer"
            if self._place == "answer":
                self._pending = self._pending.removeprefix(mark)
        return thought, self._answer() if self._place == "answer" else ""

    def _answer(self) -> str:
        """The new text of the answer, as far as it is certainly no part of the mark at its end."""
        mark, text = self._form.answer_end if self._has_end else "", self._pending
        answer, is_end, self._pending = text.partition(mark) if mark else (text, "", "")
        if is_end:
            self._has_end, self._pending = False, ""
            return answer + text[len(answer) + len(mark) :]
        self._pending = answer[len(answer) - overlap(answer, mark) :] if mark else ""
        return answer[: len(answer) - len(self._pending)]

    def finish(self) -> tuple[str, str]:
        """The rest."""
        rest, self._pending = self._pending, ""
        return (rest.rstrip(), "") if self._place == "thought" else ("", rest)
