"""`ingot.LanguageModel` on a tiny model: texts, streams, stops, logprobs, schemas, what calls share, files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.language.text.generation import StopSearch
from ingot.support.errors import ImportModelError, InputError
from tests.frontends.gguf.builder import F32, STRING, key, of_tensors, scalar, text
from tests.language.tiny import CHATML, CONTEXT, write
from tests.runtime.models import environment

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

VOCABULARY = 260
# printable characters of ASCII, and what ends an answer: a random model would write bytes that are no text
ASCII = {i: -1e4 for i in range(VOCABULARY) if not (32 <= i < 127 or i in (257, 259))}
GREEDY: dict[str, Any] = {"temperature": 0, "logit_bias": {**ASCII, 257: -1e4, 259: -1e4}}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def lm(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ingot.LanguageModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield ingot.LanguageModel(file, threads=1)


def most_likely(lm: ingot.LanguageModel, ids: list[int], count: int, bias: dict[int, float]) -> list[int]:
    """Step by step, by logits."""
    ids, start = list(ids), len(ids)
    session = lm._session
    assert session is not None
    for _ in range(count):
        logits = session.logits(ids).copy()
        for i, value in bias.items():
            logits[i] += value
        ids.append(int(logits.argmax()))
    return ids[start:]


def test_greedy_tokens(lm: ingot.LanguageModel) -> None:
    ids = lm.tokenizer.encode("Once upon a time")
    expected = most_likely(lm, ids, 40, GREEDY["logit_bias"])
    assert lm.generate(ids, max_tokens=40, **GREEDY) == expected
    assert lm.generate("Once upon a time", max_tokens=40, **GREEDY) == lm.tokenizer.decode(expected)
    assert lm.generate(ids, max_tokens=0, **GREEDY) == []
    assert lm.generate(np.array(ids), max_tokens=3, **GREEDY) == expected[:3]  # type: ignore[arg-type]


def test_a_stream_is_the_whole_in_parts(lm: ingot.LanguageModel) -> None:
    how: dict[str, Any] = {"max_tokens": 30, "seed": 7, "logit_bias": ASCII}
    full = lm.generate("Hello", **how)
    parts = [*lm.generate("Hello", stream=True, **how)]
    assert "".join(parts) == full and len(parts) > 1
    ids = lm.tokenizer.encode("Hello")
    assert [*lm.generate(ids, stream=True, **how)] == lm.generate(ids, **how)


def test_seeds(lm: ingot.LanguageModel) -> None:
    texts = [lm.generate("Hello", max_tokens=20, seed=seed, logit_bias=ASCII) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert lm.generate("Hello", max_tokens=20, logit_bias=ASCII) != lm.generate(
        "Hello", max_tokens=20, logit_bias=ASCII
    )


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_across_tokens(lm: ingot.LanguageModel, stream: bool) -> None:
    full = lm.generate("Hello", max_tokens=40, **GREEDY)
    for start, end in ((5, 6), (5, 9), (20, 37)):
        stop = full[start:end]
        answer = lm.generate("Hello", max_tokens=40, stop=["\0", stop], stream=stream, **GREEDY)
        assert "".join(answer) == full[: full.index(stop)]
    # and what was generated behind it is forgotten
    assert lm.generate("Hello", max_tokens=40, **GREEDY) == full


def test_a_stop_string_is_found_in_parts() -> None:
    search = StopSearch(["\nUser:", "##"])
    assert [search.push(part)[0] for part in ("Hi\n", "\nUs", "e", "rs#", "a#", "#b")] == [
        "Hi",
        "\n",
        "",
        "\nUsers",
        "#a",
        "",
    ]
    assert search.is_found
    search = StopSearch(["abab"])
    assert search.push("aba")[0] + search.push("ac")[0] + search.push("ab")[0] + search.finish() == "abaacab"


def test_stop_tokens_end_an_answer(lm: ingot.LanguageModel) -> None:
    only = {i: -1e4 for i in range(VOCABULARY) if i not in (97, 259)}
    result = lm.generate("Hello", max_tokens=200, seed=3, logit_bias=only, logprobs=0)
    assert result.finish == "stop" and set(result.ids) <= {97} and len(result.ids) < 100
    assert lm.generate("Hello", max_tokens=5, **GREEDY, logprobs=0).finish == "length"


def test_logprobs(lm: ingot.LanguageModel) -> None:
    result = lm.generate("Hello", max_tokens=12, temperature=0, logprobs=3)
    score = lm.score(lm.tokenizer.encode("Hello") + result.ids)
    logprobs = [token.logprob for token in result.tokens]
    assert np.allclose(logprobs, score.logprobs[-len(logprobs) :], atol=1e-4)
    for token in result.tokens:
        assert token.top[0] == (token.id, token.logprob) and len(token.top) == 3
        assert [p for _, p in token.top] == sorted((p for _, p in token.top), reverse=True)
    assert abs(score.perplexity - np.exp(-score.total / len(score.logprobs))) < 1e-9
    pieces = [*lm.generate("Hello", max_tokens=12, temperature=0, logprobs=0, stream=True)]
    assert [t.id for piece in pieces for t in piece.tokens] == result.ids and pieces[-1].finish == "length"


def read(lm: ingot.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that each native call reads, as they come."""
    assert lm._session is not None
    program, counts = lm._session.program, list[int]()

    class Counted:
        inputs, outputs, set_state = program.inputs, program.outputs, program.set_state

        def run(self, inputs: Any) -> Any:
            counts.append(inputs[0].shape[1])
            return program.run(inputs)

    monkeypatch.setattr(lm._session, "program", Counted())
    return counts


def test_a_call_reads_what_is_new(lm: ingot.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = lm.tokenizer.encode("The first call reads all of it, the second little.")
    assert lm._session is not None
    lm._session.reset()
    counts = read(lm, monkeypatch)
    first = lm.generate(prompt, max_tokens=20, **GREEDY)
    assert counts == [len(prompt), 1]  # 20 tokens are two calls
    del counts[:]
    assert lm.generate([*prompt, *first, 65, 66], max_tokens=1, **GREEDY)
    assert counts == [3]  # the last of the answer was in no cache
    del counts[:]
    assert lm.generate([*prompt[:10], 1, 2], max_tokens=1, **GREEDY)
    assert counts == [2]


PENALTIES: dict[str, Any] = {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": 0.3}


def test_streams_may_take_turns(lm: ingot.LanguageModel) -> None:
    how: dict[str, Any] = {"max_tokens": 24, "logit_bias": ASCII, **PENALTIES}
    single = [lm.generate(text, seed=5, **how) for text in ("Hello", "Hero")]
    streams = [lm.generate(text, seed=5, stream=True, **how) for text in ("Hello", "Hero")]
    texts = ["", ""]
    for _ in range(30):
        for i, stream in enumerate(streams):
            texts[i] += next(stream, "")
    assert texts == single


def test_streams_of_one_prompt_have_their_own_penalties(lm: ingot.LanguageModel) -> None:
    """One goes on where the caches are after the other's token."""
    bias = {i: -1e4 for i in range(260)} | {65: 300.0, 66: 0.0}
    how: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "logit_bias": bias, "logprobs": 0}
    hows = [{**how, "frequency_penalty": 100.0}, how]
    single = [lm.generate([1, 2, 3], **one).ids for one in hows]
    assert single[0][:2] == single[1][:2] == [65, 65] and 66 in single[0]
    streams = [lm.generate([1, 2, 3], stream=True, **one) for one in hows]
    turns = [*zip(*streams, strict=True)]
    assert [[token.id for part in parts for token in part.tokens] for parts in zip(*turns, strict=True)] == single


def test_an_interrupted_call_leaves_a_usable_model(lm: ingot.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lm._session is not None
    expected = lm.generate("Hello there", max_tokens=20, **GREEDY)
    with monkeypatch.context() as patch:
        program = lm._session.program

        class Interrupted:
            inputs, outputs, set_state = program.inputs, program.outputs, program.set_state

            def run(self, inputs: Any) -> Any:
                program.run(inputs)
                raise KeyboardInterrupt

        patch.setattr(lm._session, "program", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            lm.generate("Hello then, again", max_tokens=20, **GREEDY)
    assert lm.generate("Hello there", max_tokens=20, **GREEDY) == expected


# --- chats


def test_chats(lm: ingot.LanguageModel) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert lm.prompt(messages) == prompt and lm.template == CHATML
    ids = lm.tokenizer.encode(prompt, framed=False)
    assert ids[0] == 258
    expected = lm.tokenizer.decode(lm.generate(ids, max_tokens=20, **GREEDY))
    assert lm.chat(messages, max_tokens=20, **GREEDY) == expected
    assert "".join(lm.chat(messages, max_tokens=20, stream=True, **GREEDY)) == expected
    assert lm.chat("Hi", max_tokens=4, **GREEDY) == lm.chat(messages[1:], max_tokens=4, **GREEDY)


def test_a_template_of_its_own_for_tools(lm: ingot.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = {"default": "plain", "tool_use": "{{ tools[0].name }}"}
    monkeypatch.setattr(lm, "_facts", {**lm._facts, "templates": templates})
    chat = [{"role": "user", "content": "Hi"}]
    assert [lm.prompt(chat), lm.prompt(chat, [{"name": "weather"}]), lm.prompt(chat)] == ["plain", "weather", "plain"]


def test_a_template_may_be_given(file: Path, tmp_path: Path) -> None:
    lm = ingot.LanguageModel(write(tmp_path / "plain.gguf", template=None), context=64, threads=1)
    assert lm.template is None
    with pytest.raises(InputError, match=r"no chat template.*lm\.template"):
        lm.chat("Hi")
    lm.template = "{{ messages[0].content }}"
    assert lm.prompt([{"role": "user", "content": "Hi"}]) == "Hi"


# --- schemas

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}


def check_schema(lm: ingot.LanguageModel, seed: int) -> bool:
    """Whether an answer came to its end; one that did keeps to the schema."""
    result = lm.generate("An animal: ", temperature=1, max_tokens=200, seed=seed, schema=SCHEMA, logprobs=0)
    if result.finish != "stop":
        return False
    value = json.loads(result.text)
    assert value.keys() == {"name", "age", "kind", "tags"}
    assert isinstance(value["name"], str) and len(value["name"]) <= 8
    assert type(value["age"]) is int and 0 <= value["age"] <= 150
    assert value["kind"] in ("cat", "dog")
    assert len(value["tags"]) <= 3 and all(type(tag) is bool for tag in value["tags"])
    return True


def test_answers_keep_to_a_schema(lm: ingot.LanguageModel) -> None:
    pytest.importorskip("llguidance")
    assert all(check_schema(lm, seed) for seed in range(10))  # also of a model that likes spaces


@pytest.mark.slow
def test_no_answer_of_many_breaks_a_schema(lm: ingot.LanguageModel) -> None:
    pytest.importorskip("llguidance")
    assert all(check_schema(lm, seed) for seed in range(200))


def test_expressions_and_grammars(lm: ingot.LanguageModel) -> None:
    pytest.importorskip("llguidance")
    assert lm.generate("Well? ", regex="yes|no", temperature=1, seed=1) in ("yes", "no")
    text = lm.generate("Sum: ", grammar='start: NUMBER "+" NUMBER\nNUMBER: /[0-9]{1,3}/', temperature=1, seed=2)
    assert all(part.isdecimal() for part in text.split("+")) and text.count("+") == 1
    assert lm.chat("Well?", regex="[ab]{3}", temperature=1, seed=2).strip("ab") == ""
    for wrong in (
        {"schema": {"type": "colour"}},
        {"schema": "{"},
        {"schema": 3},
        {"grammar": "start: x"},
        {"regex": "("},
    ):
        with pytest.raises(InputError, match=r"schema|grammar"):
            lm.generate("Hi", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError) as error:
        lm.generate("Hi", schema={"$ref": "#"})
    assert "\n" not in str(error.value)  # the grammar's state is not told
    with pytest.raises(InputError, match="one of them"):
        lm.generate("Hi", regex="a", grammar="start: /a/")


# --- embeddings


def test_embeddings(lm: ingot.LanguageModel) -> None:
    vectors = lm.embed(["Hello", "Hello there", "Hello"])
    assert vectors.shape == (3, 32) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.array_equal(vectors[0], vectors[2]) and not np.allclose(vectors[0], vectors[1])
    assert np.array_equal(lm.embed("Hello"), vectors[0])
    assert lm.embed([]).shape == (0, 32)


@pytest.mark.slow
def test_adapters_are_merged(file: Path, lm: ingot.LanguageModel, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 48), (32, 2)))
    name = "blk.1.ffn_down.weight"
    kinds = {"general.type": "adapter", "adapter.type": "lora"}
    keys = [key(k, STRING, text(v)) for k, v in kinds.items()] + [key("adapter.lora.alpha", F32, scalar(F32, 2))]
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(
        of_tensors({f"{name}.lora_a": ("F32", a.shape, a), f"{name}.lora_b": ("F32", b.shape, b)}, keys)
    )
    ids = lm.tokenizer.encode("Hello")
    expected = write(tmp_path / "merged.gguf", added={name: 0.5 * b @ a})
    models = [ingot.LanguageModel(file, adapters={adapter: 0.5}, threads=1), ingot.LanguageModel(expected, threads=1)]
    first, second = (m.score(ids).logprobs for m in models)
    assert np.allclose(first, second, atol=1e-5) and not np.allclose(first, lm.score(ids).logprobs, atol=1e-3)


# --- files


def test_a_saved_model_answers_alike_without_the_compiler(lm: ingot.LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "tiny.ingot"
    lm.save(path)
    loaded = ingot.load(path, threads=1)
    assert isinstance(loaded, ingot.LanguageModel) and loaded.context == CONTEXT and loaded.name == "tiny"
    assert loaded.chat("Hi", max_tokens=20, **GREEDY) == lm.chat("Hi", max_tokens=20, **GREEDY)
    assert np.array_equal(loaded.score("Hello there").logprobs, lm.score("Hello there").logprobs)
    assert np.array_equal(loaded.embed(["Hi", "Hello"]), lm.embed(["Hi", "Hello"]))
    with pytest.raises(InputError, match="the file that it was compiled from"):
        loaded.engine()
    loaded.save(tmp_path / "again.ingot", embeds=False)
    reloaded = ingot.load(tmp_path / "again.ingot", threads=1)
    assert np.array_equal(reloaded.score("Hello there").logprobs, lm.score("Hello there").logprobs)
    with pytest.raises(InputError, match=r"saved without the program to embed.*embeds=True"):
        reloaded.embed("Hi")
    code = (
        "import sys, ingot; lm = ingot.load(sys.argv[1], threads=1)\n"
        "print(lm.generate([72, 105], max_tokens=4, seed=1))\n"
        "assert not [m for m in sys.modules if m.startswith(('llvmlite', 'ingot.ops', 'ingot.driver'))]"
    )
    command = [sys.executable, "-c", code, str(path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(), check=False)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == lm.generate([72, 105], max_tokens=4, seed=1)


def test_compile_gives_logits_of_a_chunk(lm: ingot.LanguageModel, file: Path) -> None:
    m = ingot.compile(file, threads=1)
    ids = lm.tokenizer.encode("Hello")
    assert lm._session is not None
    first, second = m(np.array([ids[:2]]), np.array([0])), m(np.array([ids[2:]]), np.array([2]))
    assert np.asarray(first).shape == (1, VOCABULARY)
    assert np.allclose(np.asarray(second)[0], lm._session.logits(ids), atol=1e-2)  # whose caches are float16
    with pytest.raises(InputError, match="context of a language model"):
        m(np.array([[1] * 300]), np.array([0]))


def test_activations_of_8_bits(tmp_path: Path) -> None:
    """Differ from floats as rounding does, and read the same a token at a time and in one chunk."""
    path = write(tmp_path / "q8.gguf", is_quantized=True)
    ids = np.random.default_rng(0).integers(32, 127, 60).tolist()
    exact, rounded = (ingot.LanguageModel(path, threads=1, activations=a) for a in ("float32", "int8"))
    a, b = exact.score(ids).logprobs, rounded.score(ids).logprobs
    assert 1e-5 < np.abs(a - b).mean() < 0.1
    session = rounded._session
    assert session is not None
    full_logits = session.logits(ids[:20]).copy()
    rounded.reset()
    step = [session.logits(ids[:i]) for i in range(1, 21)][-1]
    assert np.abs(step - full_logits).max() < 0.05
    with pytest.raises(InputError, match=r"activations.*float32 or int8"):
        ingot.LanguageModel(path, activations="int4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, "one token or more"),
        ({"prompt": []}, "one token or more"),
        ({"prompt": [1, 260]}, "0 to 259"),
        ({"prompt": [-1]}, "0 to 259"),
        ({"prompt": [1.5]}, "a text or a list of token ids"),
        ({"prompt": [1] * 300}, "at most 256 tokens.*context=1324"),
        ({"prompt": "Hi", "temperature": -1}, "temperature"),
        ({"prompt": "Hi", "temperature": float("nan")}, "temperature"),
        ({"prompt": "Hi", "top_p": 2}, "top_p"),
        ({"prompt": "Hi", "top_k": 1.5}, "top_k"),
        ({"prompt": "Hi", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "Hi", "logprobs": 1000}, "logprobs"),
        ({"prompt": "Hi", "stop": ""}, "stop"),
        ({"prompt": "Hi", "stop": 5}, "stop"),
        ({"prompt": "Hi", "logit_bias": {300: 1.0}}, "logit_bias"),
    ],
)
def test_what_does_not_fit_is_refused(lm: ingot.LanguageModel, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        lm.generate(**arguments)


def test_what_is_no_language_model_is_refused(tmp_path: Path, file: Path, lm: ingot.LanguageModel) -> None:
    with pytest.raises(InputError, match="a GGUF file, or a folder"):
        (tmp_path / "m.onnx").write_bytes(b"\x08\x0a" + bytes(8))
        ingot.LanguageModel(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="No such file"):
        ingot.LanguageModel(tmp_path / "none.gguf")
    with pytest.raises(InputError, match="one of float32"):
        ingot.LanguageModel(file, cache="float64")
    with pytest.raises(InputError, match="a number of tokens"):
        ingot.LanguageModel(file, context=0)
    with pytest.raises(InputError, match="options"):
        lm.chat("Hi", temprature=1)
    (tmp_path / "m.gguf").write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ImportModelError):
        ingot.LanguageModel(tmp_path / "m.gguf")


def test_what_is_no_prompt(lm: ingot.LanguageModel) -> None:
    for prompt in (None, b"Hello", 5, ["a", None], [1.5], {"a": 1}):
        with pytest.raises(InputError, match=r"the prompt|prompts"):
            lm.generate(prompt, max_tokens=2)  # type: ignore[arg-type]
    for call in (lm.score, lm.generate, lambda ids: lm.embed([ids])):
        with pytest.raises(InputError, match="token ids: expected 0 to 259"):
            call([72, 260])
    with pytest.raises(InputError, match=rf"2 to {CONTEXT + 1} tokens.*context=999"):
        lm.score([72] * 1000)
    assert repr(lm) == f"LanguageModel('tiny', context={CONTEXT}, vocabulary={VOCABULARY})"


def test_what_is_no_language_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder without them"):
        ingot.LanguageModel(tmp_path)
    (tmp_path / "m.ingot").write_bytes(b"\x8eINGOT\r\n" + bytes(64))
    with pytest.raises(InputError, match=r"ingot\.load"):
        ingot.LanguageModel(tmp_path / "m.ingot")
