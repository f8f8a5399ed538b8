"""Calls of tools in answers: found however the text is cut, and kept to their schemas."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pydantic")
tokenizers = pytest.importorskip("tokenizers")

from ingot.language.text.grammar import Grammars  # noqa: E402
from ingot.language.text.template import Template  # noqa: E402
from ingot.language.text.tokenizer import Tokenizer  # noqa: E402
from ingot.serving.openai.calls import CallForm, CallReader, call_form, calls_grammar  # noqa: E402
from ingot.serving.openai.errors import OpenAIError  # noqa: E402
from ingot.serving.openai.protocol import Tool  # noqa: E402
from tests.language.tiny import byte_tokens  # noqa: E402

KEYS = ("name", "arguments")
HERMES = CallForm("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>", KEYS, *KEYS)
MISTRAL = CallForm("[TOOL_CALLS][", ", ", "]", (*KEYS, "id"), *KEYS)
LLAMA = CallForm("", None, "", ("name", "parameters"), "name", "parameters")
SPLIT = CallForm("[TOOL_CALLS]", "[TOOL_CALLS]", "", middle="[ARGS]")
COUNTED = CallForm("<calls><call>f.", "</call><call>f.", "</call></calls>", middle=":0<args>", takes_text=True)
# how templates write them
NEXT = "{% if not loop.last %}"
TEMPLATES = [
    (HERMES, "{% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>" + NEXT + "{{ '\n' }}"
             "{% endif %}{% endfor %}"),
    (MISTRAL, "[TOOL_CALLS][{% for c in m.tool_calls %}{{ dict(c.function, id=c.id) | tojson }}" + NEXT + ", "
              "{% endif %}{% endfor %}]"),
    (LLAMA, "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}"
            "{% set f = m.tool_calls[0].function %}{{ {'name': f.name, 'parameters': f.arguments} | tojson }}"),
    (SPLIT, "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"
            "{% endfor %}"),
    (COUNTED, "<calls>{% for c in m.tool_calls %}<call>f.{{ c.function.name }}:{{ loop.index0 }}<args>"
              "{{ '' + c.function.arguments }}</call>{% endfor %}</calls>"),
]  # fmt: skip
XML = (
    "{% set f = m.tool_calls[0].function %}<f={{ f.name }}>{% for k, v in f.arguments.items() %}<p={{ k }}>{{ v }}</p>"
    "{% endfor %}</f>"
)
BEFORE = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}"
)
BEHIND = "{% else %}{{ m.content }}{% endif %}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


def learned(body: str) -> CallForm:
    template = Template(BEFORE + body + BEHIND, {})
    return call_form(
        lambda messages, tools, **values: template.render(messages, tools=tools, **values), tokenizer(None)
    )


PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
TOOLS = [
    Tool.model_validate({"type": "function", "function": {"name": name, "parameters": PARAMETERS}})
    for name in ("add", "sub")
]
ADD, SUB = ({"name": name, "arguments": {"a": 1}} for name in ("add", "sub"))


def hermes(*calls: object) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


TEXTS = {
    "none": (HERMES, "a < b, <tool", "a < b, <tool", []),
    "one": (HERMES, f"I add: {hermes(ADD)}", "I add: ", ["add"]),
    "two": (HERMES, hermes(ADD, SUB), "", ["add", "sub"]),
    "not JSON": (HERMES, "<tool_call>{</tool_call>!", "<tool_call>{</tool_call>!", []),
    "no tool": (HERMES, '<tool_call>{"name": "mul"}</tool_call>', '<tool_call>{"name": "mul"}</tool_call>', []),
    "not closed": (HERMES, f"<tool_call>{json.dumps(ADD)}", "", ["add"]),
    "broken off": (HERMES, '<tool_call>{"name": "a', '<tool_call>{"name": "a', []),
    "two and a text": (HERMES, f"{hermes(ADD)} and {hermes(SUB)}", " and ", ["add", "sub"]),
    "a list": (MISTRAL, f"[TOOL_CALLS]{json.dumps([ADD, SUB])}", "", ["add", "sub"]),
    "whole": (LLAMA, '{"name": "add", "parameters": {"a": 1}}', "", ["add"]),
    "other JSON": (LLAMA, '{"x": 1}', '{"x": 1}', []),
    "no JSON": (LLAMA, "It is {1}", "It is {1}", []),
    "apart": (SPLIT, '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]sub [ARGS] {"a": 1}', "", ["add", "sub"]),
    "counted": (
        COUNTED, 'ok <calls><call>f.add:0<args>{"a": 1}</call><call>f.sub:13<args>{"a": 1}</call></calls>', "ok ",
        ["add", "sub"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form, body", TEMPLATES)
def test_a_form_is_learned_from_the_template(form: CallForm, body: str):
    assert learned(body) == form


@pytest.mark.parametrize("body", ["{{ m.tool_calls[0].function.name }}(probe=1)", XML])
def test_other_forms_are_refused(body: str):
    with pytest.raises(OpenAIError, match="another form of calls"):
        learned(body)
    with pytest.raises(OpenAIError, match="has no tools"):
        call_form(lambda messages, tools, **values: "no word of them", tokenizer(None))


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("width", [1, 3, 1000])
def test_calls_are_found_however_the_text_is_cut(case: str, width: int):
    format, text, content, names = TEXTS[case]
    reader = CallReader(format, ["add", "sub"])
    parts = [reader.push(text[i : i + width]) for i in range(0, len(text), width)] + [reader.finish()]
    assert "".join(part for part, _ in parts) == content
    calls = [call for _, own in parts for call in own]
    assert [call.name for call in calls] == names and reader.has_calls == bool(names)
    assert all(json.loads(call.arguments) == {"a": 1} for call in calls)
    assert len({call.id for call in calls}) == len(calls)


def tokenizer(special: str | None) -> Tokenizer:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(byte_tokens())}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["</s>", *([special] if special else [])])
    return Tokenizer(backend, {"eos_token": "</s>"})


def is_answer(words: Tokenizer, grammar: str, text: str) -> bool:
    """Whether each token may come, and the end behind the last."""
    constraint = Grammars(words, words.count).constraint(grammar=grammar)
    for index in words.encode(text, framed=False):
        if constraint.is_done or constraint.bias()[index] < 0:
            return False
        constraint.accept(index)
    return constraint.is_done or constraint.bias()[words.ends[0]] == 0


@pytest.mark.parametrize("special", [None, "<tool_call>"])
def test_grammars_take_calls_alone_or_in_a_text(special: str | None):
    pytest.importorskip("llguidance")
    words = tokenizer(special)
    wrong = hermes({"name": "add", "arguments": {"a": "1"}})
    for is_required in (True, False):
        several = calls_grammar(HERMES, TOOLS, words, is_required=is_required, has_several=True)
        single = calls_grammar(HERMES, TOOLS, words, is_required=is_required, has_several=False)
        assert several is not None and single is not None
        assert is_answer(words, several, hermes(ADD)) and is_answer(words, several, hermes(ADD, SUB))
        assert is_answer(words, single, hermes(SUB)) and not is_answer(words, several, wrong)
        assert is_answer(words, several, "some text") == (not is_required)
        assert is_answer(words, several, f"text {hermes(ADD)}") == (not is_required)
    assert not is_answer(words, single, f"text {wrong}")
    either = calls_grammar(HERMES, TOOLS, words, is_required=False, has_several=True, schema=PARAMETERS)
    assert either is not None and is_answer(words, either, '{"a": 3}') and is_answer(words, either, hermes(ADD))
    assert not is_answer(words, either, "some text")


def test_lists_and_whole_answers_have_grammars():
    pytest.importorskip("llguidance")
    words = tokenizer("[TOOL_CALLS]")
    marked = calls_grammar(MISTRAL, TOOLS, words, is_required=True, has_several=False)
    calls = [call | {"id": "abcdefgh9"} for call in (ADD, SUB)]
    assert marked is not None and is_answer(words, marked, f"[TOOL_CALLS]{json.dumps(calls[:1])}")
    assert not is_answer(words, marked, f"[TOOL_CALLS]{json.dumps(calls)}")
    several = calls_grammar(MISTRAL, TOOLS, words, is_required=False, has_several=True)
    assert several is not None and is_answer(words, several, f"ok [TOOL_CALLS]{json.dumps(calls)}")
    whole = calls_grammar(LLAMA, TOOLS[:1], words, is_required=True, has_several=True)
    assert whole is not None and is_answer(words, whole, '{"name": "add", "parameters": {"a": 1}}')
    assert not is_answer(words, whole, '{"name": "sub", "parameters": {"a": 1}}')
    assert calls_grammar(LLAMA, TOOLS, words, is_required=False, has_several=True) is None


@pytest.mark.parametrize("is_required", [False, True])
def test_names_in_front_of_arguments_have_grammars(is_required: bool):
    pytest.importorskip("llguidance")
    words = tokenizer("<calls>")
    found = calls_grammar(COUNTED, TOOLS, words, is_required=is_required, has_several=True)
    good = '<calls><call>f.add:0<args>{"a": 1}</call><call>f.sub:17<args>{"a": 2}</call></calls>'
    assert found is not None and is_answer(words, found, good)
    assert not is_answer(words, found, good.replace("add", "mul")) and not is_answer(
        words, found, good.replace("1}", "b}")
    )
