"""Chat templates beside `transformers`, and what they cannot do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ingot.language.text.template import PLAIN, Template
from ingot.support.errors import ImportModelError, InputError
from tests.language.text.sources import llama_cpp

pytest.importorskip("jinja2")

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CITY = {"type": "string", "description": "<City> & country"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
    },
}
CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


CHATS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one": ([user("Hello <b>")], None),
    "system": ([{"role": "system", "content": "Be brief."}, user("Hi")], None),
    "turns": ([user("Hi"), {"role": "assistant", "content": "Hello!"}, user("Why?")], None),
    "tools": ([user("Weather in Köln?")], [TOOL]),
    "call": ([
        user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "12 degrees"},
    ], [TOOL]),
    "reasoning": ([user("2 + 2?"), {"role": "assistant", "thinking": "Four.", "content": "4"}, user("Sure?")], None),
}  # fmt: skip

TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "turns": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turns') }}{% endif %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
<start_of_turn>{{ role }}
{{ message.content | trim }}<end_of_turn>
{% endfor %}""",
    "tools": """{%- set ns = namespace(count=0) %}{% macro show(x, depth=0) -%}
  {%- for k, v in x | dictsort %}{{ '  ' * depth ~ k }}:{% if v is mapping %}{{ show(v, depth + 1) }}{% else %}
{{ v | tojson }}
{% endif %}{% endfor %}
{%- endmacro %}
{%- if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}{{ show(tool) }}{% set ns.count = ns.count + 1 %}
{%- endfor %}
{{ ns.count }} tools{% endif %}
{%- for m in messages %}{% if m.tool_calls is defined %}
{{- m.tool_calls | map(attribute='function') | list | tojson }}
{%- else %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}
{%- if loop.first %}{% continue %}{% endif %}|{% endfor %}""",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content | default('no') ~ m.thinking is defined }}{% endfor %}",
}


def reference() -> Callable[..., Any]:
    with pytest.MonkeyPatch.context() as patch:
        if "torchvision" not in sys.modules:
            patch.setitem(sys.modules, "torchvision", None)
        module = pytest.importorskip("transformers.utils.chat_template_utils", exc_type=ImportError)
    return module.render_jinja_template


def compare(source: str) -> int:
    """How many chats the template renders, each as `transformers` does."""
    render, template, count = reference(), Template(source, SPECIAL), 0
    for name, (messages, tools) in CHATS.items():
        present = [{key: value for key, value in m.items() if value is not None} for m in messages]
        try:
            expected = render(
                [present], tools=tools, chat_template=source, add_generation_prompt=True, **SPECIAL
            )[0][0]  # fmt: skip
        except Exception as error:
            if re.search("unsafe|generator|'functions' is undefined", str(error)):
                continue  # `transformers` refuses more
            with pytest.raises(InputError, match="the chat template"):
                template.render(messages, tools=tools)
            continue
        assert template.render(messages, tools=tools) == expected, name
        count += 1
    return count


@pytest.mark.parametrize("name", TEMPLATES)
def test_own_templates(name: str) -> None:
    assert compare(TEMPLATES[name]) >= 3


def test_the_plain_template() -> None:
    assert compare(PLAIN) >= 3
    text = Template(PLAIN, SPECIAL).render(CHATS["turns"][0])
    assert text == "<s>User: Hi\nAssistant: Hello!\nUser: Why?\nAssistant:"
    assert Template(PLAIN, {}).render([user("Hi")]) == "User: Hi\nAssistant:"


def test_templates_of_known_models() -> None:
    files = sorted(llama_cpp("models/templates").glob("*.jinja"))
    counts = [compare(file.read_text()) for file in files]
    assert sum(count >= 4 for count in counts) >= 20
    assert sum(counts) > 4 * len(files)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{% include 'other' %}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_a_template_reaches_nothing_else(source: str) -> None:
    with pytest.raises((InputError, ImportModelError), match=r"the chat template|undefined"):
        text = Template(source, SPECIAL).render([user("Hi")])
        assert text.strip() == "", text
        raise InputError("the chat template gives nothing")


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ [1] * 10000000000 }}",
        "{{ 9 ** 9 ** 99 }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ 'a'.ljust(10000000000) }}",
        "{{ '{:10000000000d}'.format(1) }}",
        "{{ 'a' | indent(10000000000, true) }}",
        "{{ range(10000000000) | list }}",
        "{{ ('a' * 1000000) | replace('a', 'a' * 1000000) }}",
        "{{ ('a' * 1000000).replace('a', 'a' * 1000000) }}",
        "{{ ('a' * 1000000) | list | join('a' * 1000000) }}",
        "{{ ('a' * 1000000).join('a' * 1000000) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(n=2) %}{% for i in range(200) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{% set ns = namespace(s='a') %}{% for i in range(40) %}"
        "{% set ns.s = ns.s | replace('a', 'aaaaaaaaaa') %}{% endfor %}",
        "{% set ns = namespace(s=['a']) %}{% for i in range(60) %}"
        "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | string }}",
    ],
)
def test_a_template_is_bounded(source: str) -> None:
    with pytest.raises(InputError, match=r"the chat template: expected|recursion|Range too big"):
        Template(source, SPECIAL).render([user("Hi")])


def test_what_is_not_readable_is_refused() -> None:
    with pytest.raises(ImportModelError, match="not readable"):
        Template("{% for %}", SPECIAL)
    with pytest.raises(ImportModelError, match="at most"):
        Template(" " * 2_000_000, SPECIAL)
    template = Template(TEMPLATES["chatml"], SPECIAL)
    for messages in ("Hi", [], [{"content": "Hi"}], [None], {"role": "user"}):
        with pytest.raises(InputError, match="messages"):
            template.render(messages)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="what JSON holds"):
        template.render([{"role": "user", "content": object()}])


def test_queues_of_a_namespace() -> None:
    """`append` and `pop` of its lists; other values stay as they are."""
    source = (
        "{% set n = namespace(ids=[], kept=[]) %}{% set n.kept = n.ids %}"
        "{% for m in messages %}{% set _ = n.ids.append(m.content) %}{% endfor %}"
        "{{ n.ids.pop(0) }} {{ n.ids | join(',') }} {{ n.kept | length }}"
    )
    assert Template(source, {}).render([user("a"), user("b"), user("c")]) == "a b,c 0"
    refusals = (
        "{% set _ = messages[0].content.append(1) %}",
        "{% set _ = messages.append(1) %}",
        "{% set n = namespace(i=1) %}{% set _ = n.i.append(1) %}",
        "{{ namespace(i=[]).i.pop() }}",
    )
    for refused in refusals:
        with pytest.raises(InputError, match="the chat template"):
            Template(refused, {}).render([user("a")])
    grows = "{% set n = namespace(l=['ab']) %}{% for i in range(64) %}{% set _ = n.l.append(n.l) %}{% endfor %}"
    with pytest.raises(InputError, match="16777216"):
        Template(grows, {}).render([user("a")])


def test_variables_of_old_templates() -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    template = Template("{{ functions }} {{ tools | map(attribute='function') | tojson }} {{ datetime }}", {})
    text = template.render([user("a")], tools=[tool])
    assert text.startswith(json.dumps([tool], indent=4)) and '[{"name": "add"}]' in text
