"""`ingot generate`: what follows a prompt."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ingot.cli.console import command_context, err, print_json
from ingot.cli.language.options import Adapters, Cache, Context, Model, SamplingOptions, open_language_model
from ingot.cli.options import Activations, Json, Limit, Threads, grouped
from ingot.support.errors import InputError, printable


@grouped
def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="A text; by default standard input.")] = None,
    *,
    sampling: SamplingOptions,
    adapter: Adapters = None,
    context: Context = None,
    cache: Cache = "float16",
    activations: Activations = "float32",
    speculate: Annotated[
        str | None, typer.Option(metavar="prompt", help="Check several tokens at once: what came before, again.")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="The same, of a smaller model with the same vocabulary.")
    ] = None,
    threads: Threads = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Go on with a text.

    The answer goes to standard output as it comes, nothing else does.

    \b
    ingot generate model.gguf "The capital of France is" -n 32
    ingot generate model.gguf "Name a city, as JSON: " --schema '{"type": "object"}' --seed 1
    ingot generate model.gguf "..." --speculate prompt --activations int8
    ingot generate model.gguf < article.txt --temperature 0 --json
    """
    with command_context(as_json, limit):
        text = _read_prompt() if prompt is None else prompt
        sequences = None if speculate is None and draft is None else 1
        lm = open_language_model(model, context, cache, activations, threads, sequences=sequences, adapters=adapter)
        arguments: dict[str, Any] = {"max_tokens": 256, **sampling.arguments, "speculate": speculate}
        if draft is not None:
            arguments["draft"] = open_language_model(draft, context, cache, activations, threads, sequences=1)
    with command_context(as_json, limit, has_progress=False):
        start = time.perf_counter()
        if not as_json:
            for part in lm.generate(text, stream=True, **arguments):
                write(part)
            write("\n")
            return
        result = lm.generate(text, logprobs=0, **arguments)
        seconds = time.perf_counter() - start
    facts = {"text": result.text, "ids": result.ids, "finish": result.finish, "prompt_tokens": result.prompt_tokens}
    logprobs = [token.logprob for token in result.tokens]
    print_json({"model": str(model), **facts, "logprobs": logprobs, "seconds": seconds})


def _read_prompt() -> str:
    if sys.stdin.isatty():
        err.print("the prompt, then Ctrl-D:")
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError("the prompt", expected="UTF-8", got=str(error)) from error


def write(text: str) -> None:
    """Text of a model, now; a terminal obeys no control sequences in it."""
    if sys.stdout.isatty():
        text = "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
    sys.stdout.write(text)
    sys.stdout.flush()
