"""Language models as programs, compiled or from the cache, with what their text needs as a note in them."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ingot.driver.compile import Options, cached_program, digest_of
from ingot.driver.recognize import files_of, language_model
from ingot.ir.node import Graph
from ingot.language.engine.paging import Steps
from ingot.runtime.artifact import LANGUAGE
from ingot.runtime.program import Program
from ingot.support import progress
from ingot.support.errors import InputError
from ingot.support.garbage import no_collection

What = Literal["generate", "embed", "score"] | Steps


def language_programs(
    path: Path, context: int | None, cache: str, adapters: Any, options: Options
) -> Callable[[What], Program]:
    """The programs of a file, by their purpose. adapters: LoRA adapters: one, several, or scales by adapter."""
    if isinstance(adapters, str | os.PathLike):
        adapters = [adapters]
    pairs = adapters.items() if isinstance(adapters, Mapping) else [(adapter, 1.0) for adapter in adapters]
    scaled = [(Path(adapter), float(scale)) for adapter, scale in pairs]

    def program(what: What) -> Program:
        with no_collection():
            return language_program(path, what, context, cache, scaled, options)

    return program


def language_program(
    path: Path, what: What, context: int | None, cache: str, adapters: Sequence[tuple[Path, float]], options: Options
) -> Program:
    """what: of an encoder always "embed". adapters: of low rank, each with its scale.

    Raises ImportModelError for a file that is malformed or of a model that is not supported, InputError for one that is
    no language model.
    """
    try:
        kind = language_model(path)
    except OSError as error:
        raise InputError(f"model {path}", expected="a file", got=error.strerror or str(error)) from error
    if kind is None:
        expected = "a GGUF file, or a folder with config.json and safetensors"
        if path.is_dir():
            raise InputError(f"model {path}", expected=expected, got="a folder without them")
        fix = "ingot.load, for what Ingot compiled; ingot.compile reads other models"
        raise InputError(f"model {path}", expected=expected, got="another file", fix=fix)

    def build() -> tuple[Graph, dict[str, str]]:
        from ingot.frontends.language import language_graph
        from ingot.pipeline.target import parse_target

        progress.report("read")
        is_paged = parse_target(options.target)[0].has_paged_attention
        graph, facts = language_graph(path, kind, what, context, cache, adapters, has_paged_attention=is_paged)
        return graph, {LANGUAGE: json.dumps(facts)}

    has_text = importlib.util.find_spec("tokenizers") is not None  # else the program has no tokenizer
    files = [*files_of(path), *(file for adapter, _ in adapters for file in files_of(adapter))]
    scales, names = [scale for _, scale in adapters], [file.name for file in files]
    settings = repr((what, context, cache, scales, path.stem, names, has_text))
    return cached_program([settings.encode(), *(digest_of(file) or b"" for file in files)], build, options)
