"""Calls of tools in answers: found however the text is cut, and kept to their schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pydantic")
tokenizers = pytest.importorskip("tokenizers")

from ingot.language.text.grammar import Grammars  # noqa: E402
from ingot.language.text.template import Template  # noqa: E402
from ingot.language.text.tokenizer import Tokenizer  # noqa: E402
from ingot.serving.openai.call_reader import CallPart, CallReader  # noqa: E402
from ingot.serving.openai.calls import ANY_TYPE, KEY, ByName, CallForm, call_form  # noqa: E402
from ingot.serving.openai.errors import OpenAIError  # noqa: E402
from ingot.serving.openai.grammars import calls_grammar, thoughtful_grammar  # noqa: E402
from ingot.serving.openai.protocol import Tool  # noqa: E402
from ingot.serving.openai.reasoning import Reasoning, ReasoningReader, reasoning_of  # noqa: E402
from tests.language.text.sources import llama_cpp  # noqa: E402
from tests.language.tiny import byte_tokens  # noqa: E402

KEYS = ("name", "arguments")
HERMES = CallForm("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>", KEYS, *KEYS)
MISTRAL = CallForm("[TOOL_CALLS][", ", ", "]", (*KEYS, "id"), *KEYS)
LLAMA = CallForm("", None, "", ("name", "parameters"), "name", "parameters")
SPLIT = CallForm("[TOOL_CALLS]", "[TOOL_CALLS]", "", middle="[ARGS]")
COUNTED = CallForm("<calls><call>f.", "</call><call>f.", "</call></calls>", middle=":0<args>", takes_text=True)
CODER = CallForm(
    "<tool_call>\n<function=", "\n</function>\n</tool_call>\n<tool_call>\n<function=", "\n</function>\n</tool_call>",
    middle=">\n<parameter=",
    by_name=ByName(">\n", ">\n", "\n</parameter>", "\n</parameter>", "\n<parameter=", ">"),
)  # fmt: skip
TYPED = CallForm(
    '<invoke name="', '</invoke><invoke name="', "</invoke>", middle='"><p name="',
    by_name=ByName('" string="true">', '" string="false">', "</p>", "</p>", '<p name="', '">'),
)  # fmt: skip
PYTHON = CallForm(
    "<call>[", "), ", ")]</call>", middle="(", by_name=ByName("=", "=", "", "", ", ", "(", quote="'"),
)  # fmt: skip
GEMMA = CallForm(
    "<call>call:", "}</call><call>call:", "}</call>", middle="{",
    by_name=ByName(":", ":", "", "", ",", "{", quote='<|"|>'),
)  # fmt: skip
KIMI = CallForm(
    '<tools><call name="', '</call><call name="', "</call></tools>", middle='" index="0"><p key="',
    by_name=ByName('" type="string">', f'" type="{ANY_TYPE}">', "</p>", "</p>", '<p key="', '" index="0">'),
)  # fmt: skip
XML = CallForm(
    '<f name="', '</f><f name="', "</f>", middle='"><',
    by_name=ByName(">", ">", f"</{KEY}>", f"</{KEY}>", "<", '">', item="item"),
)  # fmt: skip
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
ITEMS = "{% for k, v in c.function.arguments.items() %}"
BY_NAME = [
    (CODER, "{% for c in m.tool_calls %}{{ '' if loop.first else '\n' }}<tool_call>\n<function={{ c.function.name }}>"
            + ITEMS + "{{ '\n<parameter=' + k + '>\n' }}{{ v if v is string else v | tojson }}{{ '\n</parameter>' }}"
            "{% endfor %}{{ '\n</function>\n</tool_call>' }}{% endfor %}"),
    (TYPED, "{% for c in m.tool_calls %}<invoke name=\"{{ c.function.name }}\">" + ITEMS
            + "<p name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">"
            "{{ v if v is string else v | tojson }}</p>{% endfor %}</invoke>"
            "{% endfor %}"),
    (PYTHON, "<call>[{% for c in m.tool_calls %}{{ c.function.name }}(" + ITEMS
             + "{{ k }}={{ \"'\" + v + \"'\" if v is string else v }}"
             "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}"
             "{% endfor %}]</call>"),
    (GEMMA, "{% for c in m.tool_calls %}<call>call:{{ c.function.name }}{{ '{' }}"
            "{% for k, v in c.function.arguments | dictsort %}"
            "{{ k }}:{{ '<|\"|>' + v + '<|\"|>' if v is string else v | tojson }}"
            "{% if not loop.last %},{% endif %}{% endfor %}{{ '}</call>' }}{% endfor %}"),
    (KIMI, "<tools>{% for c in m.tool_calls %}<call name=\"{{ c.function.name }}\" index=\"{{ loop.index }}\">" + ITEMS
           + "<p key=\"{{ k }}\" type=\"{{ 'string' if v is string else 'boolean' if v is boolean else 'number' }}\">"
           "{{ v if v is string else v | tojson }}</p>{% endfor %}</call>{% endfor %}</tools>"),
    (XML, "{% macro xml(v) %}"
          "{% if v is mapping %}{% for k, x in v.items() %}<{{ k }}>{{ xml(x) }}</{{ k }}>{% endfor %}"
          "{% elif v is string or v is not iterable %}{{ v if v is string else v | tojson }}"
          "{% else %}{% for x in v %}<item>{{ xml(x) }}</item>{% endfor %}{% endif %}{% endmacro %}"
          "{% for c in m.tool_calls %}<f name=\"{{ c.function.name }}\">{{ xml(c.function.arguments) }}</f>"
          "{% endfor %}"),
]  # fmt: skip
NAMES = ["coder", "typed", "python", "gemma", "kimi", "xml"]
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
    "a mark in front": (COUNTED, '<calls>! <calls><call>f.add:0<args>{"a": 1}</call></calls>', "<calls>! ", ["add"]),
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


@pytest.mark.parametrize("form, body", TEMPLATES + BY_NAME)
def test_a_form_is_learned_from_the_template(form: CallForm, body: str):
    assert learned(body) == form


@pytest.mark.parametrize("body", ["{{ m.tool_calls[0].function.name }}(probe=1)", "<f>"])
def test_other_forms_are_refused(body: str):
    with pytest.raises(OpenAIError, match="another form of calls"):
        learned(body)
    with pytest.raises(OpenAIError, match="has no tools"):
        call_form(lambda messages, tools, **values: "no word of them", tokenizer(None))


LISTED = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"


@pytest.mark.parametrize(("mark", "end"), [("<|tool_call_start|>", ")]<|tool_call_end|>"), ("<|tool_call|>", "}]")])
def test_calls_that_templates_leave_in_the_content(mark: str, end: str):
    template = Template(LISTED + "</s>{% endfor %}", {})
    form = call_form(lambda messages, tools, **_: template.render(messages, tools=tools), tokenizer(mark))
    data = [("add", {"a": 1}), ("sub", {"a": "x"})]
    call = form.calls_text(data)
    assert form.in_content and call.startswith(f"{mark}[") and call.endswith(end)
    content, calls = merge_parts(CallReader(form, TOOLS), cut(f"Well {call}", 3))
    assert content == "Well " and [(c.name, json.loads(c.arguments)) for c in calls] == data


LOOK = {"type": "function", "function": {"name": "look", "description": "", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city"], "properties": {
        "city": {"type": "string", "description": ""}, "n": {"type": "integer", "description": ""},
        "tags": {"type": "array", "description": "", "items": {"type": "string"}},
        "when": {"type": "object", "description": "", "additionalProperties": False, "properties": {
            "now": {"type": "boolean"}, "days": {"type": "array", "items": {"type": "object", "properties": {
                "hour": {"type": "number"}}, "additionalProperties": False}}}}}}}}  # fmt: skip
LOOKS = [
    {"city": "Zo <b> 1"}, {"city": "x", "n": -3}, {"city": "x", "n": 4, "tags": ["a", "b c"]},
    {"city": "x", "n": 1, "tags": [], "when": {"now": True, "days": [{"hour": 1.5}, {"hour": 2}]}},
]  # fmt: skip


def test_calls_of_known_templates():
    """What their templates make of a call is read as this call again, in fragments, too."""
    accepted, refused = 0, set[str]()
    user = [{"role": "user", "content": "Where?"}]
    for path in sorted(llama_cpp("models/templates").glob("*.jinja")):
        template = Template(path.read_text(), {"bos_token": "<s>", "eos_token": "</s>"})

        def render(messages: list[Any], tools: Any, template: Template = template, **values: Any) -> str:
            return template.render(messages, tools=tools, **values)

        try:
            form = call_form(render, tokenizer("<|tool_call_start|>" if path.name.startswith("LFM2") else None))
        except OpenAIError:
            refused.add(path.stem)
            continue
        accepted += 1
        for values in LOOKS:
            if form.in_content:
                text = form.calls_text([("look", values)])
            else:
                function = {"name": "look", "arguments": json.dumps(values) if form.takes_text else values}
                call = {"id": "abcdefgh9", "type": "function", "function": function}
                answer = {"role": "assistant", "content": "", "tool_calls": [call]}
                text = render([*user, answer], [LOOK], add_generation_prompt=False).rpartition("Where?")[2]
                if not form.trigger:
                    text = text[text.index("{" if form.keys else "look") :]
            for is_guarded in (True, False):
                reader = CallReader(form, [Tool.model_validate(LOOK)], is_guarded=is_guarded)
                _, calls = merge_parts(reader, cut(text, 3))
                assert [json.loads(c.arguments) for c in calls] == [values], (path.name, text)
    assert accepted == 62 and refused == {
        "HuggingFaceTB-SmolLM3-3B", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1", "google-gemma-2-2b-it",
        "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct", "muse-glimmer",
    }  # fmt: skip


def merge_parts(reader: CallReader, texts: list[str]) -> tuple[str, list[CallPart]]:
    """(the content, the calls as wholes)."""
    parts = [reader.push(text) for text in texts] + [reader.finish()]
    calls: dict[int, CallPart] = {}
    for part in (part for _, call_list in parts for part in call_list):
        before = calls.setdefault(part.index, part)
        if before is not part:
            assert not part.name and not part.id
            calls[part.index] = CallPart(part.index, before.arguments + part.arguments, before.name, before.id)
    assert [*calls] == [*range(len(calls))]
    return "".join(content for content, _ in parts), [*calls.values()]


def cut(text: str, width: int) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), width)]


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("width", [1, 3, 1000])
def test_calls_are_found_however_the_text_is_cut(case: str, width: int):
    format, text, content, names = TEXTS[case]
    reader = CallReader(format, TOOLS)
    rest, calls = merge_parts(reader, cut(text, width))
    assert rest == content
    assert [call.name for call in calls] == names and reader.has_calls == bool(names)
    assert all(json.loads(call.arguments) == {"a": 1} for call in calls)
    assert len({call.id for call in calls}) == len(calls) and all(call.id for call in calls)


VALUES = {
    "city": 'Zo"e\n <b> 1',
    "n": -3,
    "x": 1.5,
    "all": True,
    "tags": ["a, b", "(c)"],
    "more": {"k": None, "l": [1, {"x": [True]}]},
    "any": "7",
}
KINDS = {
    "city": "string",
    "n": "integer",
    "x": "number",
    "all": "boolean",
    "tags": "array",
    "more": "object",
    "any": "string",
}
SEARCH = Tool.model_validate({"type": "function", "function": {"name": "search", "parameters": {
    "type": "object", "properties": {key: {"type": kind} for key, kind in KINDS.items()}, "required": ["city"],
    "additionalProperties": False}}})  # fmt: skip


def quoted(value: object, mark: str) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{k}:{quoted(v, mark)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(quoted(v, mark) for v in value)}]"
    return f"{mark}{value}{mark}" if isinstance(value, str) else json.dumps(value)


def xml(value: object) -> str:
    if isinstance(value, dict):
        return "".join(f"<{k}>{xml(v)}</{k}>" for k, v in value.items())
    if isinstance(value, list):
        return "".join(f"<item>{xml(v)}</item>" for v in value)
    return value if isinstance(value, str) else json.dumps(value)


def by_name(form: CallForm, *calls: dict[str, object]) -> str:
    """As a model writes calls of `search`."""
    parts: list[str] = []
    argument_form = form.by_name
    assert argument_form is not None and argument_form.empty is not None
    for values in calls:
        texts = list[str]()
        for key, value in values.items():
            is_text = isinstance(value, str) and not argument_form.quote
            literal = str(value) if is_text else repr(value) if argument_form.is_python else json.dumps(value)
            literal = (
                quoted(value, argument_form.quote) if argument_form.quote and not argument_form.is_python else literal
            )
            literal = xml(value) if argument_form.item else literal
            mark, end = (
                (argument_form.text_value, argument_form.text_end)
                if is_text
                else (argument_form.other_value, argument_form.other_end)
            )
            kind = {list: "array", dict: "object", bool: "boolean"}.get(type(value), "number")
            texts.append(key + mark.replace(ANY_TYPE, kind) + literal + end.replace(KEY, key))
        parts.append("search" + (form.middle + argument_form.following.join(texts) if texts else argument_form.empty))
    assert form.between is not None
    return form.before + form.between.join(parts) + form.after


@pytest.mark.parametrize("form", [form for form, _ in BY_NAME], ids=NAMES)
@pytest.mark.parametrize("width", [1, 7, 1000])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_arguments_by_name_become_json(form: CallForm, width: int, is_guarded: bool):
    inputs = [VALUES, {"city": ""}, {}, {"city": "x", "tags": []}]
    reader = CallReader(form, [SEARCH], is_guarded=is_guarded)
    content, calls = merge_parts(reader, cut("I look: " + by_name(form, *inputs), width))
    assert content == "I look: " and [call.name for call in calls] == ["search"] * 4
    assert [json.loads(call.arguments) for call in calls] == inputs


@pytest.mark.parametrize("form", [HERMES, SPLIT, CODER, TYPED, KIMI, XML])
def test_arguments_are_told_as_they_come(form: CallForm):
    values: dict[str, object] = {"city": "a long name of a city"}
    text = by_name(form, values) if form.by_name else hermes({"name": "search", "arguments": values})
    text = f"[TOOL_CALLS]search[ARGS]{json.dumps(values)}" if form is SPLIT else text
    reader = CallReader(form, [SEARCH], is_guarded=True)
    parts = [part for piece in cut(text, 4) for part in reader.push(piece)[1]]
    assert len(parts) > 5 and parts[0].name == "search" and json.loads("".join(p.arguments for p in parts)) == values
    # an answer that is broken off has told what there was
    reader = CallReader(form, [SEARCH], is_guarded=True)
    content, (call,) = merge_parts(reader, cut(text[: text.index("name of")], 5))
    assert content == "" and json.dumps(values).startswith(call.arguments) and "a long" in call.arguments


def test_values_that_templates_write_in_other_notations():
    """Lists in Python's, and texts with marks in XML's."""
    for text, values in [
        ("<function=search>\n<parameter=city>\nx\n</parameter>\n<parameter=tags>\n['a', \"b\"]\n</parameter>",
         {"city": "x", "tags": ["a", "b"]}),
        ("<function=search>\n<parameter=city>\n<![CDATA[a</parameter>]]>\n</parameter>\n<parameter=n>\n[1\n</parameter>",
         {"city": "a</parameter>", "n": "[1"}),
    ]:  # fmt: skip
        reader = CallReader(CODER, [SEARCH])
        _, (call,) = merge_parts(reader, cut(f"<tool_call>\n{text}\n</function>\n</tool_call>", 3))
        assert json.loads(call.arguments) == values


def test_what_python_does_not_write_is_no_call():
    for arguments in ("city=x()", "city=open", "city='a' 'b'", "city=" + "[" * 100, "1", "city=1e"):
        text = f"<call>[search({arguments})]</call>"
        assert merge_parts(CallReader(PYTHON, [SEARCH]), [text]) == (text, [])


THOUGHTS = {
    "thought": ("<think>\nIs it?\n</think>\n\nIt is.", "Is it?", "It is."),
    "none": ("It <think> is.", "", "It <think> is."),
    "broken off": ("  <think>Is it", "Is it", ""),
    "empty": ("<think>\n\n</think>\n\nIt is.", "", "It is."),
    "begins alike": ("<thin", "", "<thin"),
    "marks in it": ("<think>a </thin b\n\nc</think>d</think>", "a </thin b\n\nc", "d</think>"),
}


@pytest.mark.parametrize("case", THOUGHTS)
@pytest.mark.parametrize("width", [1, 3, 1000])
@pytest.mark.parametrize("is_begun", [False, True])
def test_thoughts_are_apart_from_answers(case: str, width: int, is_begun: bool):
    text, thought, answer = THOUGHTS[case]
    if is_begun and "<think>" not in text[:9]:
        return
    text = text.lstrip().removeprefix("<think>") if is_begun else text
    reader = ReasoningReader(Reasoning("<think>", "</think>"), is_begun=is_begun)
    parts = [reader.push(piece) for piece in cut(text, width)] + [reader.finish()]
    assert ("".join(fragment for fragment, _ in parts), "".join(fragment for _, fragment in parts)) == (thought, answer)


def test_marks_of_thoughts_are_learned_from_the_template():
    custom_template = (
        "{% if m.reasoning_content %}{{ '[T]' + m.reasoning_content + '[/T]' }}{% endif %}{{ m.content }}{% endfor %}"
    )
    template = Template("{% for m in messages %}<{{ m.role }}>" + custom_template, {})
    left_out = Template("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}<think>", {})

    def learned(template: Template) -> Reasoning | None:
        return reasoning_of(lambda m, tools, **values: template.render(m, tools=tools, **values), template.source)

    assert learned(template) == Reasoning("[T]", "[/T]")
    assert learned(left_out) == Reasoning("<think>", "</think>")
    assert learned(Template("{{ messages[0].content }}", {})) is None
    assert Reasoning("<think>", "</think>").is_begun("<assistant><think>\n")


NAMED = Reasoning(
    "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>", "<|close|>response<|sep|>"
)
NAMED_ANSWERS = {
    "thought": ("Is it?<|close|>think<|sep|><|open|>response<|sep|>It is.<|close|>response<|sep|>", "Is it?", "It is."),
    "call": ("<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools", "", "<|open|>tools"),
    "cut": ("Hm<|close|>think<|sep|><|open|>response<|sep|>It <|close|>resp", "Hm", "It <|close|>resp"),
    "no answer's mark": ("Hm<|close|>think<|sep|>It is.", "Hm", "It is."),
    "second end": (
        "<|close|>think<|sep|>a<|close|>response<|sep|>b<|close|>response<|sep|>", "", "ab<|close|>response<|sep|>"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED_ANSWERS)
@pytest.mark.parametrize("width", [1, 3, 1000])
@pytest.mark.parametrize("is_begun", [False, True])
def test_answers_with_marks_of_their_own(case: str, width: int, is_begun: bool):
    text, thought, answer = NAMED_ANSWERS[case]
    reader = ReasoningReader(NAMED, is_begun=is_begun)
    parts = [reader.push(piece) for piece in cut(text if is_begun else NAMED.begin + text, width)] + [reader.finish()]
    assert ("".join(fragment for fragment, _ in parts), "".join(fragment for _, fragment in parts)) == (thought, answer)
    single = ReasoningReader(NAMED, is_begun=False)
    parts = [single.push(piece) for piece in cut("<|open|>response<|sep|>Yes.<|close|>response<|sep|>", width)]
    assert "".join(fragment for _, fragment in [*parts, single.finish()]) == "Yes."


def test_named_marks_are_learned_from_the_template():
    parts = "{{ part('think', m.reasoning_content) }}{{ part('response', m.content) }}"
    macro = "{% macro part(n, t) %}<|open|>{{ n }}<|sep|>{{ t }}<|close|>{{ n }}<|sep|>{% endmacro %}"
    source = macro + "{% for m in messages %}<|open|>message<|sep|>" + parts + "<|end|>{% endfor %}"
    template = Template(source, {})
    learned = reasoning_of(lambda m, tools, **values: template.render(m, tools=tools, **values), source)
    assert learned == NAMED and NAMED.is_begun("<|open|>message<|sep|><|open|>think<|sep|>")


def tokenizer(*special: str | None) -> Tokenizer:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(byte_tokens())}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["</s>", *filter(None, special)])
    return Tokenizer(backend, {"eos_token": "</s>"})


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
    "<|open|>tools<|sep|><|open|>call<|sep|>", "<|close|>call<|sep|><|open|>call<|sep|>", "<|close|>tools<|sep|>",
    KEYS, *KEYS, long_trigger="<|open|>tools<|sep|>",
)  # fmt: skip
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
