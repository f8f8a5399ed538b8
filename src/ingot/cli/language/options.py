"""What the commands for language models share: their options, and how a model is opened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ingot.api.language_model import LanguageModel
from ingot.api.load import load
from ingot.driver.open import file_kind
from ingot.driver.recognize import LANGUAGE
from ingot.runtime import artifact
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.support.formats import Format

Model = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="A GGUF file, a folder of Hugging Face, or what ingot compile made of one."),
]
Context = Annotated[int | None, typer.Option(min=1, help="Tokens of prompt and answer; by default 4096 at most.")]
CACHE_OPTION = typer.Option(
    "--cache-type",
    metavar="TYPE",
    help="Of cached keys and values: float32, float16, bfloat16, int8, float8_e4m3fn, float8_e5m2.",
)
Cache = Annotated[str, CACHE_OPTION]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="FILE[=SCALE]",
        help="A LoRA adapter of a language model: a GGUF file, a folder of PEFT. Repeatable.",
    ),
]
Sequences = Annotated[
    int | None,
    typer.Option(
        "--sequences",
        min=1,
        max=1024,
        help="Of a language model: answers that are computed at a time, for ingot serve.",
    ),
]
CacheMemory = Annotated[
    float | None,
    typer.Option("--cache-memory", min=0.001, metavar="MIB", help="Of keys and values of all --sequences together."),
]
Template = Annotated[
    Path | None,
    typer.Option("--template", metavar="FILE", help="A chat template in Jinja, instead of the model's own."),
]


@dataclass(frozen=True)
class SamplingOptions:
    """The options of sampling, named as the arguments of `LanguageModel.generate`."""

    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", min=0, help="The most tokens of an answer.")
    ] = None
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="0: the most likely token; by default as the file says.")
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Draw from so many tokens; 0: all.")] = None
    top_p: Annotated[float | None, typer.Option(help="Draw from the fewest tokens of this probability.")] = None
    min_p: Annotated[float | None, typer.Option(help="Draw from tokens with this part of the best one's chance.")] = (
        None
    )
    repetition_penalty: Annotated[float | None, typer.Option(help="Divides logits of tokens that are there.")] = None
    presence_penalty: Annotated[float | None, typer.Option(help="Subtracted from logits of generated tokens.")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="The same, for each time.")] = None
    seed: Annotated[int | None, typer.Option(help="The same seed, the same tokens.")] = None
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Ends the answer. Repeatable.")] = None
    schema: Annotated[
        str | None, typer.Option(metavar="FILE", help="A JSON schema that the answer keeps to: a file, or JSON itself.")
    ] = None
    regex: Annotated[str | None, typer.Option(help="A regular expression that the answer keeps to.")] = None
    grammar: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A grammar of Lark that the answer keeps to.")
    ] = None

    @property
    def arguments(self) -> dict[str, Any]:
        options = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if self.schema is not None:
            options["schema"] = _schema(self.schema)
        if self.grammar is not None:
            options["grammar"] = _text(self.grammar)
        return options


def is_language_model(path: Path) -> bool:
    """Whether `open_language_model` opens it."""
    kind = file_kind(path)
    return kind in LANGUAGE or (kind == "artifact" and artifact.LANGUAGE in artifact.load(path).meta)


def open_language_model(
    path: Path,
    context: int | None,
    cache: str,
    activations: str,
    threads: int | None,
    template: Path | None = None,
    sequences: int | None = None,
    cache_bytes: int | None = None,
    adapters: Sequence[str] | None = None,
    target: str = "native",
    precision: str = "float32",
) -> LanguageModel:
    """sequences, cache_bytes: None, or those of an engine. adapters: see `scaled_adapters`. target, precision: of
    a model that is compiled now. Raises what `LanguageModel` and `ingot.load` raise, and InputError for another one."""
    progress.report("read")
    kind = file_kind(path)
    if kind == "artifact":
        model = load(path, threads=threads)
        if not isinstance(model, LanguageModel):
            raise InputError(
                f"model {path}", expected="a language model", got="another compiled program", fix="ingot run"
            )
        if context is not None and context != model.context:
            fix = "compile the model again"
            raise InputError("--context", expected=f"{model.context}, as it was compiled", got=context, fix=fix)
        if adapters:
            fix = "compile the model again"
            raise InputError("--adapter", expected="none of a compiled model", got=adapters[0], fix=fix)
        if activations != "float32":
            got, fix = f"{activations} for a compiled model", "compile the model again"
            raise InputError("--activations", expected="none", got=got, fix=fix)
    elif kind in LANGUAGE:
        model = LanguageModel(
            path, context=context, cache=cache, activations=activations, threads=threads, sequences=sequences,
            cache_bytes=cache_bytes, adapters=scaled_adapters(adapters), target=target, precision=precision,
        )  # fmt: skip
    else:
        got = kind.name if isinstance(kind, Format) else f"a model of kind {kind}"
        expected = "a GGUF file, a folder with config.json and safetensors, or a compiled language model"
        raise InputError(f"model {path}", expected=expected, got=got)
    if template is not None:
        model.template = _text(template)
    return model


def scaled_adapters(words: Sequence[str] | None) -> dict[str, float]:
    """Scales by adapters, of FILE or FILE=SCALE."""
    scales: dict[str, float] = {}
    for word in words or ():
        path, _, scale = word.rpartition("=")
        try:
            scales[path or word] = float(scale) if path else 1.0
        except ValueError:
            raise InputError("--adapter", expected="FILE, or FILE=SCALE with a number", got=repr(word)) from None
    return scales


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _schema(text: str) -> str:
    try:
        json.loads(text)
        return text
    except ValueError:
        try:
            return Path(text).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("--schema", expected="a file, or JSON", got=repr(text)[:80]) from error
