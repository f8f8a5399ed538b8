"""OpenAI's routes through OpenAI's own client, beside `LanguageModel` itself."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("openai")

from prometheus_client import CollectorRegistry

from ingot.language.engine import Answer
from ingot.language.text.generation import AnswerPart
from ingot.serving.openai.answers import Choice, deltas
from ingot.serving.openai.metrics import LanguageMetrics
from ingot.serving.openai.model import Prompt, ServedLanguageModel
from ingot.support.errors import IngotError
from tests.language.tiny import SPECIAL
from tests.serving.openai.server import client, language_model, served

GREEDY = {"model": "tiny", "temperature": 0}
CHAT = [{"role": "user", "content": "Hello"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"sign": {"enum": ["plus", "minus"]}, "far": {"type": "boolean"}},
            "required": ["sign", "far"],
            "additionalProperties": False,
        },
    },
}
SHAPE = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "yes": {"type": "boolean"}},
    "required": ["kind", "yes"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory):
    return language_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def url(lm):
    with served([ServedLanguageModel("tiny", lm)]) as url:
        yield url


@pytest.fixture(scope="module")
def api(url: str):
    with client(url) as api:
        yield api


def test_models_are_listed_and_described(api, url: str):
    assert [model.id for model in api.models.list()] == ["tiny"]
    assert api.models.retrieve("tiny").owned_by == "ingot"
    with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
        assert json.load(response) == {"status": "ok"}


def test_a_completion_is_what_the_model_generates(api, lm):
    expected = lm.generate("The", max_tokens=12, temperature=0, logprobs=0)
    answer = api.completions.create(prompt="The", max_tokens=12, **GREEDY)
    assert answer.choices[0].text == expected.text and answer.choices[0].finish_reason == expected.finish
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert answer.usage.completion_tokens == len(expected.ids)
    of_ids = api.completions.create(prompt=lm.tokenizer.encode("The"), max_tokens=12, **GREEDY)
    assert of_ids.choices[0].text == expected.text
    assert api.completions.create(prompt="The", **GREEDY).usage.completion_tokens <= 16


def test_several_prompts_and_choices_have_their_places(api, lm):
    prompts, seeds = ["The", "A dog"], [5, 6]
    options = {"max_tokens": 8, "temperature": 1.0, "top_p": 0.9}
    answer = api.completions.create(model="tiny", prompt=prompts, n=2, seed=5, **options)
    expected = [lm.generate(p, seed=s, **options) for p in prompts for s in seeds]
    assert [c.text for c in answer.choices] == expected and [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == sum(len(lm.tokenizer.encode(p)) for p in prompts)


def test_more_answers_than_the_queue_has_room_for(lm):
    with served([ServedLanguageModel("tiny", lm, sequences=2, queue=3)]) as url, client(url) as api:
        answers = api.completions.create(prompt="a", n=12, max_tokens=2, **GREEDY)
        assert len({choice.text for choice in answers.choices}) == 1 and len(answers.choices) == 12


def test_the_parts_of_streams_are_the_whole(api):
    completion = api.completions.create(prompt=["The", "A dog"], max_tokens=12, **GREEDY)
    texts, finishes, usages = ["", ""], ["", ""], []
    for chunk in api.completions.create(
        prompt=["The", "A dog"], max_tokens=12, stream=True, stream_options={"include_usage": True}, **GREEDY
    ):
        usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            finishes[choice.index] = choice.finish_reason or finishes[choice.index]
    assert texts == [c.text for c in completion.choices] and finishes == [c.finish_reason for c in completion.choices]
    assert usages[-1] == completion.usage and not any(usages[:-1])


def test_chats_whole_and_in_parts(api, lm):
    expected = lm.chat(CHAT, max_tokens=12, temperature=0, logprobs=0)
    answer = api.chat.completions.create(messages=CHAT, max_completion_tokens=12, **GREEDY)
    message = answer.choices[0].message
    assert message.content == expected.text and message.role == "assistant" and not message.tool_calls
    chunks = [*api.chat.completions.create(messages=CHAT, max_tokens=12, stream=True, **GREEDY)]
    assert chunks[0].choices[0].delta.role == "assistant" and len({c.id for c in chunks}) == 1
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected.text
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == [expected.finish]
    parts = [{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}]}]
    data = [{"role": "system", "content": "Be brief"}, *CHAT]
    answer = api.chat.completions.create(messages=parts + CHAT, max_tokens=8, **GREEDY)
    assert answer.choices[0].message.content == lm.chat(data, max_tokens=8, temperature=0)
    # an answer goes back as it came
    messages = [*CHAT, answer.choices[0].message, *CHAT]
    assert api.chat.completions.create(messages=messages, max_tokens=4, **GREEDY).usage.completion_tokens


def test_logprobs_are_those_of_the_model(api, lm):
    expected = lm.chat(CHAT, max_tokens=10, temperature=0, logprobs=3)
    response = api.chat.completions.create(messages=CHAT, max_tokens=10, logprobs=True, top_logprobs=3, **GREEDY)
    entries = response.choices[0].logprobs.content
    np.testing.assert_allclose([e.logprob for e in entries], [t.logprob for t in expected.tokens], atol=2e-5)
    assert [bytes(e.bytes) for e in entries] == [lm.tokenizer.token_bytes(t.id) for t in expected.tokens]
    plain = b"".join(bytes(e.bytes) for e in entries if e.token not in SPECIAL)
    assert plain.decode(errors="replace") == expected.text
    for entry, token in zip(entries, expected.tokens, strict=True):
        assert [t.bytes for t in entry.top_logprobs] == [[*lm.tokenizer.token_bytes(i)] for i, _ in token.top]
        assert entry.top_logprobs[0].logprob == entry.logprob  # greedy
    stream = api.chat.completions.create(messages=CHAT, max_tokens=10, logprobs=True, stream=True, **GREEDY)
    parts = [e for c in stream if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [e.logprob for e in parts] == [e.logprob for e in entries] and not parts[0].top_logprobs
    columns = api.completions.create(prompt="The", max_tokens=6, logprobs=2, **GREEDY).choices[0].logprobs
    assert len(columns.tokens) == len(columns.token_logprobs) == len(columns.top_logprobs) == len(columns.text_offset)
    assert columns.text_offset == [sum(map(len, columns.tokens[:i])) for i in range(len(columns.tokens))]


def test_stop_strings_bias_and_penalties_reach_the_model(api, lm):
    text = lm.generate("The", max_tokens=12, temperature=0)
    stop = text[4:6]
    answer = api.completions.create(prompt="The", max_tokens=12, stop=[stop], **GREEDY).choices[0]
    assert answer.text == text[: text.index(stop)] and answer.finish_reason == "stop"
    assert api.completions.create(prompt="The", max_tokens=3, logit_bias={"65": 100}, **GREEDY).choices[0].text == (
        lm.tokenizer.token(65) * 3
    )
    options = {"frequency_penalty": 2.0, "presence_penalty": 1.5}
    extra = {"repetition_penalty": 1.4, "top_k": 5}
    response = api.completions.create(model="tiny", prompt="The", max_tokens=12, seed=3, extra_body=extra, **options)
    assert response.choices[0].text == lm.generate("The", max_tokens=12, seed=3, **options, **extra)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_keep_to_schemas(api, stream: bool):
    formats = [
        {"type": "json_schema", "json_schema": {"name": "shape", "schema": SHAPE, "strict": True}},
        {"type": "json_object"},
    ]
    for format in formats:
        inputs = api.chat.completions.create(
            messages=CHAT, response_format=format, max_tokens=120, temperature=1, seed=1, model="tiny", stream=stream
        )
        if stream:
            text = "".join(c.choices[0].delta.content or "" for c in inputs)
        else:
            text = inputs.choices[0].message.content
        if format is formats[0]:
            assert json.loads(text).keys() == SHAPE["properties"].keys()
        else:
            assert text.lstrip().startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_tools_are_called_with_arguments_of_their_schema(api, choice):
    other = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {},
             "additionalProperties": False}}}  # fmt: skip
    request = {"messages": CHAT, "tools": [ADD, other], "tool_choice": choice, "parallel_tool_calls": False,
             "max_tokens": 200, "seed": 2, "model": "tiny"}  # fmt: skip
    choice_ = api.chat.completions.create(**request).choices[0]
    call = choice_.message.tool_calls[0]
    assert (
        choice_.finish_reason == "tool_calls"
        and choice_.message.content is None
        and len(choice_.message.tool_calls) == 1
    )
    if choice != "required":
        assert call.function.name == "add"
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == ({"sign", "far"} if call.function.name == "add" else set())
    parts = [c.choices[0] for c in api.chat.completions.create(stream=True, **request)]
    calls = [call for part in parts for call in part.delta.tool_calls or []]
    text = "".join(call.function.arguments for call in calls)
    assert calls[0].id and not any(call.id or call.function.name for call in calls[1:])
    assert calls[0].function.name == call.function.name and {call.index for call in calls} == {0}
    assert json.loads(text) == arguments and parts[-1].finish_reason == "tool_calls"
    # the result goes back
    messages = [*CHAT, choice_.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
    answer = api.chat.completions.create(messages=messages, tools=[ADD, other], max_tokens=4, model="tiny")
    assert answer.usage.prompt_tokens > 100


def test_tools_left_alone_are_no_calls(api):
    request = {"messages": CHAT, "tools": [ADD], "max_tokens": 12, **GREEDY}
    without = api.chat.completions.create(messages=CHAT, max_tokens=12, **GREEDY)
    assert api.chat.completions.create(tool_choice="none", **request).choices[0].message == without.choices[0].message
    auto = api.chat.completions.create(**request)
    assert not auto.choices[0].message.tool_calls and auto.usage.prompt_tokens > without.usage.prompt_tokens


def test_an_error_right_behind_a_piece_is_raised(lm):
    """Both wake the event loop once."""
    answer = Answer(1)

    async def read() -> list[str]:
        choice = Choice(0, answer, Prompt([1], {}), lm.tokenizer, LanguageMetrics(CollectorRegistry(), []).pace("m", 0))
        answer.put(AnswerPart((), "text"))
        answer.fail(IngotError("broken"))
        texts: list[str] = []
        with pytest.raises(IngotError, match="broken"):
            async with asyncio.timeout(20):
                async for _, delta in deltas([choice]):
                    texts.append(delta.content)
        return texts

    assert asyncio.run(read()) == ["text"]


def test_embeddings_in_both_forms(api, lm):
    texts = ["The", "A dog"]
    response = api.embeddings.create(model="tiny", input=texts)  # base64 unless asked
    np.testing.assert_array_equal(np.array([d.embedding for d in response.data], np.float32), lm.embed(texts))
    ids = [lm.tokenizer.encode(text) for text in texts]
    assert response.usage.prompt_tokens == sum(map(len, ids))
    response = api.embeddings.create(model="tiny", input=ids, encoding_format="float", dimensions=lm.embed("a").size)
    np.testing.assert_array_equal(np.array([d.embedding for d in response.data], np.float32), lm.embed(texts))


def test_many_clients_get_the_answers_of_single_calls(api, lm):
    prompts = [f"{word} {i}" for i, word in enumerate(["one", "two", "three", "four"] * 3)]
    expected = [lm.generate(p, max_tokens=10, temperature=0) for p in prompts]

    def complete(prompt: str) -> str:
        return api.completions.create(prompt=prompt, max_tokens=10, **GREEDY).choices[0].text

    with ThreadPoolExecutor(6) as executor:
        assert [*executor.map(complete, prompts)] == expected


def test_metrics_tell_tokens_and_times(api, url: str):
    api.completions.create(prompt="The", max_tokens=5, **GREEDY)
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        rows = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if line[0] != "#")
    of = '{model="tiny"}'
    assert float(rows[f"ingot_generated_tokens_total{of}"]) >= 5 and float(rows[f"ingot_prompt_tokens_total{of}"]) >= 1
    assert float(rows[f"ingot_first_token_seconds_count{of}"]) >= 1
    assert float(rows[f"ingot_between_tokens_seconds_count{of}"]) >= 4
    assert rows[f"ingot_waiting_sequences{of}"] == rows[f"ingot_running_sequences{of}"] == "0.0"
    assert float(rows['ingot_requests_total{model="tiny",outcome="success",version="1"}']) >= 1


CODER = (
    "{% if tools %}<system>{{ tools | tojson }}</s>{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call><function={{ c.function.name }}>"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v if v is string else v | tojson }}"
    "</parameter>{% endfor %}</function></tool_call>{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
UNLISTED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
THINKER = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)


def test_calls_in_xml_and_thoughts_are_told_apart(tmp_path: Path):
    models = {"coder": CODER, "unlisted": UNLISTED, "thinker": THINKER}
    for name in models:
        (tmp_path / name).mkdir()
    served_models = [ServedLanguageModel(n, language_model(tmp_path / n, template)) for n, template in models.items()]
    with served(served_models) as url, client(url) as api:
        request = {"model": "coder", "messages": CHAT, "tools": [ADD], "tool_choice": "required", "temperature": 0,
                 "parallel_tool_calls": False, "max_tokens": 200}  # fmt: skip
        choice_ = api.chat.completions.create(**request).choices[0]
        call = choice_.message.tool_calls[0].function
        arguments = json.loads(call.arguments)
        assert choice_.finish_reason == "tool_calls" and call.name == "add"
        assert arguments["sign"] in ("plus", "minus") and isinstance(arguments["far"], bool)
        parts = [part.choices[0].delta for part in api.chat.completions.create(stream=True, **request)]
        facts = [one for part in parts for one in part.tool_calls or []]
        fragments = [one.function.arguments or "" for one in facts if one.function]
        assert len(facts) > 1 and "".join(fragments) == call.arguments

        request |= {"model": "unlisted", "messages": [{"role": "system", "content": "Be brief."}, *CHAT]}
        answer = api.chat.completions.create(**request)
        assert answer.choices[0].message.tool_calls[0].function.name == "add"
        extra = (
            answer.usage.prompt_tokens
            - api.chat.completions.create(**request | {"tools": [], "tool_choice": "none"}).usage.prompt_tokens
        )
        assert extra > len(json.dumps(ADD["function"]["parameters"])) // 4  # the tools are in the system message

        request = {"model": "thinker", "messages": CHAT, "temperature": 0, "max_tokens": 8}
        plain = api.chat.completions.create(**request, extra_body={"reasoning_format": "none"}).choices[0].message
        thought = api.chat.completions.create(**request).choices[0].message
        assert plain.content and thought.content == "" and thought.reasoning_content.strip() == plain.content.strip()
        deltas = [part.choices[0].delta for part in api.chat.completions.create(stream=True, **request)]
        thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
        assert "".join(thoughts).strip() == thought.reasoning_content.strip()
        assert not any(delta.content for delta in deltas)
