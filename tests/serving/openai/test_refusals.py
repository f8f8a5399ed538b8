"""Errors in OpenAI's form: limits, malformed bodies, what is not supported, keys, clients that go away."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("uvicorn")
openai = pytest.importorskip("openai")

import ingot  # noqa: E402
from ingot.language.text.generation import Token  # noqa: E402
from ingot.serving.application import RequestLimits  # noqa: E402
from ingot.serving.openai import answers  # noqa: E402
from ingot.serving.openai.model import ServedLanguageModel  # noqa: E402
from tests.language import tiny  # noqa: E402
from tests.serving.openai.server import client, language_model, served  # noqa: E402

CHAT = [{"role": "user", "content": "Hello"}]
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com"}}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
COMPLETIONS, CHATS, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory):
    return language_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def url(lm):
    with served([ServedLanguageModel("tiny", lm)], RequestLimits(body_bytes=1 << 20, seconds=30)) as url:
        yield url


def post(url: str, path: str, body: bytes, headers=None) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request("POST", path, body, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())["error"]
    finally:
        connection.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    "path, change, param, message",
    [
        (COMPLETIONS, {"prompt": None}, "prompt", ""),
        (COMPLETIONS, {"prompt": []}, "prompt", "at least 1 item"),
        (COMPLETIONS, {"prompt": {}}, "prompt", "a valid string or a valid array"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt", "prompt.1: Input should be a valid integer"),
        (COMPLETIONS, {"prompt": [1, -1]}, "prompt", "prompt.1: Input should be greater than or equal to 0"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt", ""),
        (COMPLETIONS, {"prompt": [4, 100_000]}, "prompt", "token id"),
        (COMPLETIONS, {"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        (COMPLETIONS, {"max_tokens": "5"}, "max_tokens", "valid integer"),
        (COMPLETIONS, {"temperature": 2.5}, "temperature", "less than or equal to 2"),
        (COMPLETIONS, {"n": 0}, "n", ""),
        (COMPLETIONS, {"n": 100, "prompt": ["a", "b"]}, "n", "at most 128"),
        (COMPLETIONS, {"seed": 1 << 70}, "seed", ""),
        (COMPLETIONS, {"stop": ["a"] * 17}, "stop", "at most 16 items"),
        (COMPLETIONS, {"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        (COMPLETIONS, {"logit_bias": {"999999": 1}}, None, "logit_bias"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs", ""),
        (COMPLETIONS, {"echo": True}, "echo", ""),
        (COMPLETIONS, {"best_of": 3}, "best_of", ""),
        (COMPLETIONS, {"suffix": "x"}, "suffix", ""),
        (COMPLETIONS, {"stream_options": {"include_usage": True}}, None, "stream: true"),
        (COMPLETIONS, {"unheard_of": 1}, "unheard_of", "not supported"),
        (CHATS, {"messages": []}, "messages", ""),
        (CHATS, {"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role", "'system'"),
        (CHATS, {"messages": [{"role": "user"}]}, "messages.0", "content"),
        (CHATS, {"messages": [{"role": "user", "content": [5]}]}, "messages.0.content", "content.0: Input"),
        (CHATS, {"tool_choice": "any"}, "tool_choice", "'required' or an object"),
        (CHATS, {"tool_choice": {"type": "function", "function": {}}}, "tool_choice", "function.name: Field required"),
        (CHATS, {"messages": [IMAGE]}, "messages.0.content", "image_url"),
        (CHATS, {"messages": [*CHAT, {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "["}}]}]},
         "messages.1.tool_calls", "JSON object"),
        (CHATS, {"tools": [TOOL, TOOL]}, None, "different names"),
        (CHATS, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "pattern"),
        (CHATS, {"tool_choice": "required"}, None, "needs tools"),
        (CHATS, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, None, "['f']"),
        (CHATS, {"response_format": {"type": "xml"}}, "response_format", ""),
        (CHATS, {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": True}}},
         "response_format.json_schema.schema", "response_format.json_schema.schema: Input should be an object"),
        (CHATS, {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 5}}}},
         None, "schema"),
        (CHATS, {"top_logprobs": 2}, None, "logprobs: true"),
        (CHATS, {"functions": []}, "functions", "not supported"),
        (CHATS, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "got 'messages'"),
        (CHATS, {"chat_template_kwargs": {"__step": 1}}, "chat_template_kwargs", "got '__step'"),
        (CHATS, {"reasoning_effort": "low"}, "reasoning_effort", "not supported"),
        (EMBEDDINGS, {"input": []}, "input", ""),
        (EMBEDDINGS, {"input": "a" * 2000}, "input", "at most"),
        (EMBEDDINGS, {"dimensions": 3}, "dimensions", "the model's"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(url: str, path: str, change: dict, param: str | None, message: str):
    good = {COMPLETIONS: {"prompt": "a"}, CHATS: {"messages": CHAT}, EMBEDDINGS: {"input": "a"}}[path]
    status, error = post(url, path, json.dumps({"model": "tiny", **good, **change}).encode())
    assert status == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == param and message in error["message"]


def test_malformed_bodies_and_unknown_places(url: str):
    for body in (b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"3", b'{"model": "tiny", "temperature": NaN}'):
        status, error = post(url, COMPLETIONS, body)
        assert status == 400 and error["type"] == "invalid_request_error", body[:20]
    assert post(url, COMPLETIONS, b"x" * (2 << 20))[0] == 413
    assert post(url, COMPLETIONS, b"{}", {"Content-Encoding": "gzip"})[0] == 415
    assert post(url, "/v1/nothing", b"{}")[1]["type"] == "invalid_request_error"
    with client(url) as api:
        with pytest.raises(openai.NotFoundError) as missing:
            api.completions.create(model="other", prompt="a")
        assert missing.value.code == "model_not_found" and missing.value.param == "model"
        with pytest.raises(openai.NotFoundError):
            api.models.retrieve("other")


def test_names_may_have_slashes(lm):
    with served([ServedLanguageModel("owner/name", lm)]) as url, client(url) as api:
        assert api.models.retrieve("owner/name").id == "owner/name"
        with pytest.raises(openai.NotFoundError, match=r"expected one of \['owner/name'\]"):
            api.models.retrieve("owner/other")


def test_a_prompt_beyond_the_context_is_refused_by_code(url: str):
    with client(url) as api:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="at most 1024 tokens, got 15") as error:
                api.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "a" * 1500}], stream=stream
                )
            assert error.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="got more than 2048") as error:
            api.completions.create(model="tiny", prompt="a" * 900_000)  # of which the beginning is encoded alone
        assert error.value.code == "context_length_exceeded" and error.value.param == "prompt"


def test_tools_need_a_template_that_has_them(tmp_path):
    with served([ServedLanguageModel("tiny", language_model(tmp_path, tiny.CHATML))]) as url, client(url) as api:
        with pytest.raises(openai.BadRequestError, match="chat template has no tools") as error:
            api.chat.completions.create(model="tiny", messages=CHAT, tools=[TOOL])  # type: ignore[arg-type]
        assert error.value.code == "unsupported_parameter"
    with (
        served([ServedLanguageModel("tiny", language_model(tmp_path, None))]) as url,
        client(url) as api,
        pytest.raises(openai.BadRequestError, match="no chat template"),
    ):
        api.chat.completions.create(model="tiny", messages=CHAT)  # type: ignore[arg-type]


def test_a_key_is_needed_where_there_is_one(lm):
    with served([ServedLanguageModel("tiny", lm)], key="s3cret") as url:
        with client(url, "s3cret") as api:
            assert [m.id for m in api.models.list()] == ["tiny"]
        for wrong in ("other", "s3cre", "s3cret2"):
            with client(url, wrong) as api, pytest.raises(openai.AuthenticationError) as error:
                api.models.list()
            assert error.value.code == "invalid_api_key"
        assert post(url, "/v2/repository/index", b"")[1]["code"] == "invalid_api_key"
        for path, status in (("/health", 200), ("/metrics", 401), ("/v1/models", 401), ("/v1//models", 401)):
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
            connection.request("GET", path)
            assert connection.getresponse().status == status
            connection.close()


LONG = {"model": "tiny", "prompt": "a", "max_tokens": 900, "ignore_eos": True, "temperature": 1}


def test_a_full_queue_is_told_and_room_is_made(lm, monkeypatch: pytest.MonkeyPatch):
    model = ServedLanguageModel("tiny", lm, sequences=1, queue=1)
    with served([model]) as url, client(url) as api:
        slow = paused(model, monkeypatch)
        sockets = [raw(url, LONG)]
        until(lambda: model.engine.statistics().running == 1)
        sockets.append(raw(url, LONG))
        until(lambda: model.engine.statistics().waiting == 1)
        with pytest.raises(openai.InternalServerError) as error:
            api.completions.create(model="tiny", prompt="a")
        assert error.value.status_code == 503 and error.value.code == "overloaded"
        assert error.value.response.headers["retry-after"]
        for s in sockets:
            s.close()
        slow.clear()
        until(lambda: model.engine.statistics().waiting == model.engine.statistics().running == 0)
        assert api.completions.create(model="tiny", prompt="a", max_tokens=2).usage


@pytest.mark.parametrize("stream", [False, True])
def test_a_killed_client_stops_the_computation(lm, stream: bool, monkeypatch: pytest.MonkeyPatch):
    model = ServedLanguageModel("tiny", lm)
    with served([model]) as url:
        slow = paused(model, monkeypatch)  # the whole answer would take 9 s
        with raw(url, {**LONG, "stream": stream}):
            until(lambda: model.engine.statistics().running == 1)
        start = time.monotonic()
        until(lambda: model.engine.statistics().running == 0)
        assert time.monotonic() - start < 5
        slow.clear()


def test_an_answer_that_takes_too_long_is_an_error(lm, monkeypatch: pytest.MonkeyPatch):
    model = ServedLanguageModel("tiny", lm)
    with served([model], RequestLimits(seconds=0.5)) as url, client(url) as api:
        slow = paused(model, monkeypatch)
        request = {"model": "tiny", "prompt": "a", "max_tokens": 900, "extra_body": {"ignore_eos": True}}
        with pytest.raises(openai.InternalServerError) as error:
            api.completions.create(**request)
        assert error.value.status_code == 504
        with pytest.raises(openai.APIError, match=r"within 0\.5 s"):
            list(api.completions.create(stream=True, **request))
        until(lambda: model.engine.statistics().running == 0)
        slow.clear()


def test_a_failure_inside_is_no_secret_told(lm, monkeypatch: pytest.MonkeyPatch):
    with served([ServedLanguageModel("tiny", lm)]) as url, client(url) as api:

        def fail(*args, **kwargs):
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(lm, "prompt", fail)
        with pytest.raises(openai.InternalServerError, match="ZeroDivisionError") as error:
            api.chat.completions.create(model="tiny", messages=CHAT)  # type: ignore[arg-type]
        assert "secret" not in str(error.value)


def paused(model: ServedLanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each step takes 10 ms, until the list is emptied."""
    seconds = [0.01]
    stepper = model.engine._stepper
    run = stepper.run

    def slow(parts):
        time.sleep(sum(seconds))
        return run(parts)

    monkeypatch.setattr(stepper, "run", slow)
    return seconds


def raw(url: str, body: dict) -> socket.socket:
    """A connection that has sent a request and not read anything."""
    data = json.dumps(body).encode()
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=20)
    connection.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def test_what_is_no_number_is_not_written_as_json(tmp_path):
    delta = np.zeros((260, tiny.WIDTH), np.float32)
    delta[97] = np.nan
    file = tiny.write(tmp_path / "nan.gguf", added={"token_embd.weight": delta})
    model = ServedLanguageModel("tiny", ingot.LanguageModel(file, threads=1, context=64))
    with served([model]) as url, client(url) as api:
        options: list[dict[str, Any]] = [{"logprobs": 2}, {"temperature": 0}]
        for how in options:
            with pytest.raises(openai.InternalServerError, match="expected finite numbers"):
                api.completions.create(model="tiny", prompt="a", **how)
        for form in ("float", "base64"):
            with pytest.raises(openai.InternalServerError, match="the embedding: expected finite values"):
                api.embeddings.create(model="tiny", input="a", encoding_format=form)
        assert api.completions.create(model="tiny", prompt="b", max_tokens=1, temperature=0).usage


def test_impossible_tokens_have_logprobs_of_json(lm):
    entry = answers._entry(lm.tokenizer, Token(98, "b", float("-inf"), ((97, -1.5), (99, float("-inf")))))
    assert [entry["logprob"], *(top["logprob"] for top in entry["top_logprobs"])] == [-9999.0, -1.5, -9999.0]
