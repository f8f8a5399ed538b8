"""`ingot generate`, `ingot chat` and what other commands make of a language model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import ingot
from ingot import cli
from ingot.cli.language.chat import Conversation
from ingot.cli.language.options import SamplingOptions
from ingot.language.session import SAMPLING
from tests.language.tiny import write, write_adapter

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

ENDS = ("-n", "8", "--seed", "1")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield write(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def lm(file: Path) -> ingot.LanguageModel:
    return ingot.LanguageModel(file, threads=1)


def call(*args: object, text: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in args], input=text)


def test_options_are_those_of_generate() -> None:
    assert {f.name for f in fields(SamplingOptions)} <= signature(ingot.LanguageModel.generate).parameters.keys()
    assert set(SAMPLING) <= {f.name for f in fields(SamplingOptions)}


def test_generate(file: Path, lm: ingot.LanguageModel) -> None:
    expected = lm.generate("Hello", max_tokens=8, seed=1)
    result = call("generate", file, "Hello", "--threads", 1, *ENDS)
    assert result.exit_code == 0 and result.stdout == expected + "\n"
    assert call("generate", file, "--threads", 1, *ENDS, text="Hello").stdout == expected + "\n"
    facts = json.loads(call("generate", file, "Hello", "--threads", 1, *ENDS, "--json").stdout)
    assert facts["text"] == expected and len(facts["ids"]) == len(facts["logprobs"]) == 8
    assert facts["finish"] == "length" and facts["prompt_tokens"] == 5


def test_speculation(file: Path, lm: ingot.LanguageModel) -> None:
    """The same text, whoever proposes it."""
    expected = lm.generate("Hello", max_tokens=8, seed=1) + "\n"
    for options in (("--speculate", "prompt"), ("--draft", file)):
        result = call("generate", file, "Hello", "--threads", 1, *ENDS, *options)
        assert (result.exit_code, result.stdout) == (0, expected), result.output
    assert "expected 'prompt'" in call("generate", file, "Hi", "--threads", 1, "--speculate", "luck").stderr


def test_adapters_and_grammars(file: Path, tmp_path: Path) -> None:
    """Adapters with a scale, at generate and at compile; a regular expression and a grammar."""
    adapter = write_adapter(tmp_path / "a=b.gguf")
    expected = ingot.LanguageModel(file, adapters={adapter: 0.5}, threads=1).generate("Hello", max_tokens=8, seed=1)
    options = ("--adapter", f"{adapter}=0.5", "--threads", 1)
    result = call("generate", file, "Hello", *ENDS, *options)
    assert result.stdout == expected + "\n" != call("generate", file, "Hello", *ENDS, "--threads", 1).stdout
    assert call("compile", file, "-o", tmp_path / "m.ingot", *options).exit_code == 0
    compiled = call("generate", tmp_path / "m.ingot", "Hello", *ENDS)
    assert compiled.stdout == result.stdout
    refused = call("generate", tmp_path / "m.ingot", "Hello", "--adapter", adapter)
    assert "compile the model again" in refused.stderr
    assert "FILE=SCALE" in call("generate", file, "Hello", "--adapter", "a=b").stderr
    pytest.importorskip("llguidance")
    (tmp_path / "g.lark").write_text('start: "x" "y"+')
    assert call("generate", file, "Hello", "--regex", "[ab]{3}", "-n", 9).stdout.strip("ab") == "\n"
    assert call("generate", file, "Hello", "--grammar", tmp_path / "g.lark", "-n", 9).stdout.startswith("xy")


def test_a_schema_in_a_file(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    (tmp_path / "schema.json").write_text('{"enum": ["cat", "dog"]}')
    for schema in (tmp_path / "schema.json", '{"enum": ["cat", "dog"]}'):
        result = call("generate", file, "An animal: ", "--threads", 1, "--seed", 2, "--schema", schema)
        assert json.loads(result.stdout) in ("cat", "dog")
    assert "a file, or JSON" in call("generate", file, "Hi", "--schema", "{").stderr


def test_what_is_no_language_model(tmp_path: Path, file: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x0a" + bytes(8))
    for command in ("generate", "chat"):
        result = call(command, tmp_path / "m.onnx")
        assert result.exit_code == 2 and "a GGUF file" in result.stderr and "Traceback" not in result.stderr
    assert call("generate", file, "Hi", "--temperature", "-1").exit_code == 2


def test_a_compiled_model_chats(file: Path, tmp_path: Path, lm: ingot.LanguageModel) -> None:
    path = tmp_path / "tiny.ingot"
    facts = json.loads(call("compile", file, "-o", path, "--context", 128, "--threads", 1, "--json").stdout)
    assert facts["output"] == str(path) and "tokens" in " ".join(facts["outputs"])
    assert ingot.load(path).context == 128  # type: ignore[union-attr]
    result = call("chat", path, "--threads", 1, *ENDS, text="Hi\n")
    assert result.exit_code == 0
    assert result.stdout == lm.chat("Hi", max_tokens=8, seed=1).lstrip() + "\n"
    assert "as it was compiled" in call("chat", path, "--context", 64, text="").stderr
    assert "--context" in call("compile", file, "--dim", "tokens=4").stderr


def test_a_model_without_a_template_is_told_apart(tmp_path: Path, file: Path) -> None:
    plain = write(tmp_path / "plain.gguf", template=None)
    result = call("chat", plain, "--context", 64, "--threads", 1, *ENDS, text="Hi\n")
    assert result.exit_code == 0 and "no chat template" in result.stderr
    (tmp_path / "t.jinja").write_text("{{ messages[-1].content }}")
    result = call(
        "chat", plain, "--context", 64, "--threads", 1, *ENDS, "--template", tmp_path / "t.jinja", text="Hi\n"
    )
    assert result.exit_code == 0 and "no chat template" not in result.stderr


class Recorded:
    """A model that answers with the number of messages."""

    name, context = "recorded", 64

    def __init__(self) -> None:
        self.requests: list[list[dict[str, str]]] = []

    def chat(self, messages: list[dict[str, str]], **_: Any) -> Iterator[str]:
        self.requests.append([*messages])
        yield " answer"
        if messages[-1]["content"] == "stop":
            raise KeyboardInterrupt
        yield f" {len(messages)}"


def test_a_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = Recorded()
    lines = iter(
        ["Hi", "", "/retry", "stop", "/nonsense", "/help", "/system Be brief.", "Why?", "/reset", "Ah", "/exit", "x"]
    )
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    talk = Conversation(model, {})  # type: ignore[arg-type]
    talk.run()
    captured = capsys.readouterr()
    assert captured.out.startswith("answer 1\nanswer 1\nanswer\n/reset") and captured.out.endswith(
        "answer 2\nanswer 2\n"
    )
    assert "no command /nonsense" in captured.err
    roles = [[m["role"][0] + ":" + m["content"] for m in messages] for messages in model.requests]
    assert roles == [
        ["u:Hi"], ["u:Hi"], ["u:Hi", "a:answer 1", "u:stop"], ["s:Be brief.", "u:Why?"], ["s:Be brief.", "u:Ah"],
    ]  # fmt: skip
    assert [m["role"] for m in talk.messages] == ["system", "user", "assistant"]


def test_bench_explain_and_compare(file: Path) -> None:
    facts = json.loads(call("bench", file, "--threads", 1, "--rounds", 1, "--energy", "--json").stdout)
    assert {"joules_of_token_prefill", "joules_of_token_decode"} <= facts.keys()
    assert facts["prefill_rate"] > 0 and facts["decode_rate"] > 0 and facts["prompt"] == 128
    joint = call("bench", file, "--threads", 1, "--rounds", 1, "--streams", 2, "--energy", "--json")
    assert "joules_of_token_decode" in json.loads(joint.stdout)
    result = call("compare", file, "--size", "tokens=5", "--threads", 1, "--json")
    assert json.loads(result.stdout)["ok"] is True
    assert "kernels" in call("explain", file, "--size", "tokens=4", "--threads", 1).stdout
