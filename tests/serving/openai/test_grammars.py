"""Grammars of answers: calls keep to the schemas of their tools, wherever they begin."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("tokenizers")

from ingot.language.text.grammar import Grammars
from ingot.language.text.tokenizer import Tokenizer
from ingot.serving.openai.calls import CallForm
from ingot.serving.openai.grammars import calls_grammar, thoughtful_grammar
from ingot.serving.openai.reasoning import Reasoning
from tests.serving.openai.test_calls import (
    ADD,
    BY_NAME,
    COUNTED,
    HERMES,
    KEYS,
    LLAMA,
    MISTRAL,
    NAMED,
    NAMES,
    PARAMETERS,
    SEARCH,
    SUB,
    TOOLS,
    VALUES,
    by_name,
    hermes,
    tokenizer,
)


def is_answer(words: Tokenizer, grammar: str, text: str) -> bool:
    """Whether each token may come, and the end behind the last."""
    constraint = Grammars(words, words.count).constraint(grammar=grammar)
    for index in words.encode(text, framed=False):
        if constraint.is_done or constraint.bias()[index] < 0:
            return False
        constraint.accept(index)
    return constraint.is_done or constraint.bias()[words.end_ids[0]] == 0


@pytest.mark.parametrize("special", [None, "<tool_call>"])
def test_grammars_take_calls_alone_or_in_a_text(special: str | None):
    pytest.importorskip("llguidance")
    words = tokenizer(special)
    wrong = hermes({"name": "add", "arguments": {"a": "1"}})
    for is_required in (True, False):
        multi_call = calls_grammar(HERMES, TOOLS, words, is_required=is_required, has_several=True)
        single = calls_grammar(HERMES, TOOLS, words, is_required=is_required, has_several=False)
        assert multi_call is not None and single is not None
        assert is_answer(words, multi_call, hermes(ADD)) and is_answer(words, multi_call, hermes(ADD, SUB))
        assert is_answer(words, single, hermes(SUB)) and not is_answer(words, multi_call, wrong)
        assert is_answer(words, multi_call, "some text") == (not is_required)
        assert is_answer(words, multi_call, f"text {hermes(ADD)}") == (not is_required)
    assert not is_answer(words, single, f"text {wrong}")
    thinker = tokenizer(special, "<think>", "</think>")
    free = calls_grammar(HERMES, TOOLS, thinker, is_required=False, has_several=True)
    assert free is not None and is_answer(thinker, free, f"<think>Hm</think>text {hermes(ADD)}") == (
        special is not None
    )
    grammar = calls_grammar(HERMES, TOOLS, words, is_required=False, has_several=True, schema=PARAMETERS)
    assert grammar is not None and is_answer(words, grammar, '{"a": 3}') and is_answer(words, grammar, hermes(ADD))
    assert not is_answer(words, grammar, "some text")


MARKS = ("<|open|>", "<|close|>", "<|sep|>", "<|other|>")
LONG = CallForm(
    "<|open|>tools<|sep|><|open|>call<|sep|>",
    "<|close|>call<|sep|><|open|>call<|sep|>",
    "<|close|>tools<|sep|>",
    KEYS,
    *KEYS,
    long_trigger="<|open|>tools<|sep|>",
)
LONG_ANSWERS = [
    "", "text", "<|open|>response<|sep|>tools<|close|>response<|sep|>", "<|open|>tool<|sep|>", "<|open|><|sep|>tools",
    "<|open|>tools", "<|open|>tools<|close|>", "<|open|>toolset<|sep|>", "<|open|>tools <|sep|>", "<|other|><|open|>",
    "<|open|><|open|>", "<|open|>tools<|open|>too<|sep|>",
]  # fmt: skip


@pytest.mark.parametrize("marks", [MARKS, ()])
def test_calls_are_found_among_marks_of_answers(marks: tuple[str, ...]):
    """By several marks, of which the first is in other answers, too."""
    pytest.importorskip("llguidance")
    words = tokenizer(*marks)
    several, single = (calls_grammar(LONG, TOOLS, words, is_required=False, has_several=h) for h in (True, False))
    assert several is not None and single is not None
    call, wrong = (json.dumps(c) for c in (ADD, {"name": "add", "arguments": {"a": "1"}}))
    two = f"{LONG.before}{call}{LONG.between}{call}{LONG.after}"
    for text in LONG_ANSWERS:
        assert is_answer(words, several, text), text
        assert is_answer(words, several, f"{text}<|close|>{LONG.before}{call}{LONG.after}<|close|>message<|sep|>"), text
        assert not is_answer(words, several, f"{text}<|close|>{LONG.before}{wrong}{LONG.after}"), text
        assert is_answer(words, several, text + two) and not is_answer(words, single, text + two), text
    assert not is_answer(words, several, "<|open|><|open|>tools<|sep|>Hm")
    assert not is_answer(words, several, "<|open|>tools<|open|>tools<|sep|>Hm")


def test_lists_and_whole_answers_have_grammars():
    pytest.importorskip("llguidance")
    words = tokenizer("[TOOL_CALLS]")
    marked = calls_grammar(MISTRAL, TOOLS, words, is_required=True, has_several=False)
    calls = [call | {"id": "abcdefgh9"} for call in (ADD, SUB)]
    assert marked is not None and is_answer(words, marked, f"[TOOL_CALLS]{json.dumps(calls[:1])}")
    assert not is_answer(words, marked, f"[TOOL_CALLS]{json.dumps(calls)}")
    grammar = calls_grammar(MISTRAL, TOOLS, words, is_required=False, has_several=True)
    assert grammar is not None and is_answer(words, grammar, f"ok [TOOL_CALLS]{json.dumps(calls)}")
    parallel_grammar = calls_grammar(LLAMA, TOOLS[:1], words, is_required=True, has_several=True)
    assert parallel_grammar is not None and is_answer(
        words, parallel_grammar, '{"name": "add", "parameters": {"a": 1}}'
    )
    assert not is_answer(words, parallel_grammar, '{"name": "sub", "parameters": {"a": 1}}')
    assert calls_grammar(LLAMA, TOOLS, words, is_required=False, has_several=True) is None


@pytest.mark.parametrize("is_required", [False, True])
def test_names_in_front_of_arguments_have_grammars(is_required: bool):
    pytest.importorskip("llguidance")
    words = tokenizer("<calls>")
    result = calls_grammar(COUNTED, TOOLS, words, is_required=is_required, has_several=True)
    good = '<calls><call>f.add:0<args>{"a": 1}</call><call>f.sub:17<args>{"a": 2}</call></calls>'
    assert result is not None and is_answer(words, result, good)
    assert not is_answer(words, result, good.replace("add", "mul")) and not is_answer(
        words, result, good.replace("1}", "b}")
    )


@pytest.mark.parametrize("form", [form for form, _ in BY_NAME], ids=NAMES)
def test_arguments_by_name_have_grammars(form: CallForm):
    pytest.importorskip("llguidance")
    words = tokenizer(None)
    right = by_name(form, VALUES)
    for is_required in (True, False):
        result = calls_grammar(form, [SEARCH, *TOOLS], words, is_required=is_required, has_several=True)
        assert result is not None and is_answer(words, result, right)
        assert is_answer(words, result, by_name(form, {"city": "a", "tags": ["b"]}, {"city": "c"}))
        assert not is_answer(words, result, by_name(form, {"n": 1}))  # the city is required
        assert not is_answer(words, result, by_name(form, {"city": "a", "n": "b"}))
        assert not is_answer(words, result, right.replace("search", "look"))


def test_grammars_let_models_think_first():
    pytest.importorskip("llguidance")
    words, form = tokenizer("<think>"), Reasoning("<think>", "</think>")
    result = calls_grammar(HERMES, TOOLS, words, is_required=True, has_several=True, reasoning=form)
    assert result is not None and is_answer(words, result, hermes(ADD))
    assert is_answer(words, result, f"<think>Add?</think>\n\n{hermes(ADD)}")
    begun = calls_grammar(HERMES, TOOLS, words, is_required=True, has_several=True, reasoning=form, is_thinking=True)
    assert begun is not None and is_answer(words, begun, f"Add?</think>{hermes(ADD)}")
    assert not is_answer(words, begun, hermes(ADD))
    named = thoughtful_grammar(NAMED, PARAMETERS, words)
    assert is_answer(words, named, f'Hm{NAMED.end}{NAMED.answer_begin}{{"a": 3}}{NAMED.answer_end}')
    assert not is_answer(words, named, f'Hm{NAMED.end}{{"a": 3}}')
    called = calls_grammar(HERMES, TOOLS, words, is_required=True, has_several=True, reasoning=NAMED, is_thinking=True)
    assert called is not None and is_answer(words, called, f"Add?{NAMED.end}{hermes(ADD)}")
    assert is_answer(words, called, f"Add?{NAMED.end}{NAMED.answer_begin}{NAMED.answer_end}{hermes(ADD)}")
    schema = thoughtful_grammar(form, PARAMETERS, words)
    assert is_answer(words, schema, 'Hm</think>\n{"a": 3}') and not is_answer(words, schema, '{"a": 3}')
