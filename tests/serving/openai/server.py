"""A tiny language model behind OpenAI's routes, in a thread, and the official client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai

import ingot
from ingot.serving.application import RequestLimits, application
from ingot.serving.metrics import Metrics
from ingot.serving.openai.authentication import KeyRequired
from ingot.serving.openai.model import LanguageModels, ServedLanguageModel
from ingot.serving.openai.routes import routes
from ingot.serving.repository import Repository
from ingot.serving.server import bind, serve, url_of
from tests.language import tiny

# as Hermes' and Qwen's
TOOLS_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\n<tools>' + tools | tojson + '</tools> answer <tool_call>' }}"
    "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function | tojson + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def language_model(folder: Path, template: str | None = TOOLS_TEMPLATE) -> ingot.LanguageModel:
    return ingot.LanguageModel(
        tiny.write(folder / "tiny.gguf", template=template, context=1024), threads=1, sequences=4
    )


@contextmanager
def served(
    models: list[ServedLanguageModel], limits: RequestLimits | None = None, key: str | None = None
) -> Iterator[str]:
    """The URL of a server. The models are closed with it."""
    listener = bind("127.0.0.1", 0)
    limits, metrics, language_models = limits or RequestLimits(), Metrics(), LanguageModels(models)
    app = application(Repository([]), limits, metrics, routes(language_models, limits, metrics), language_models.close)
    started = threading.Event()
    servers = []
    arguments = (app if key is None else KeyRequired(app, key), listener, lambda url: started.set(), servers.append)
    thread = threading.Thread(target=serve, args=arguments, daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield url_of(listener)
    finally:
        servers[0].should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def client(url: str, key: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)
