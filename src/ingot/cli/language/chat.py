"""`ingot chat`: a conversation in the terminal."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from ingot.api.language_model import LanguageModel
from ingot.cli.console import command_context, err, escape
from ingot.cli.language.generate import write
from ingot.cli.language.options import Adapters, Cache, Context, Model, SamplingOptions, Template, open_language_model
from ingot.cli.options import Activations, Limit, Threads, grouped
from ingot.language.text.template import PLAIN, PLAIN_STOP
from ingot.support.errors import IngotError

_HELP = """/reset            forget the conversation
/system TEXT      begin anew, with instructions for the model
/retry            answer the last question again
/help             this list
/exit, Ctrl-D     leave; Ctrl-C ends an answer"""


@grouped
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="Instructions for the model.")] = None,
    template: Template = None,
    *,
    sampling: SamplingOptions,
    adapter: Adapters = None,
    context: Context = None,
    cache: Cache = "float16",
    activations: Activations = "float32",
    threads: Threads = None,
    limit: Limit = None,
) -> None:
    """Talk to a model. Lines from a pipe are questions, too.

    Ctrl-C ends an answer, not the conversation; /help lists commands.

    \b
    ingot chat model.gguf
    ingot chat model.gguf --system "Answer in one sentence." --temperature 0
    echo "Why is the sky blue?" | ingot chat model.gguf
    """
    with command_context(False, limit):
        lm = open_language_model(model, context, cache, activations, threads, template, adapters=adapter)
        arguments = sampling.arguments
        if lm.template is None:
            lm.template = PLAIN
            arguments["stop"] = [*arguments.get("stop", []), PLAIN_STOP]
            err.print(
                f"{escape(lm.name)} has no chat template and may not have been trained for chats: "
                "turns are written as User: and Assistant:. --template FILE gives another.",
                style="yellow",
                highlight=False,
            )
    Conversation(lm, arguments, system).run()


class Conversation:
    def __init__(self, lm: LanguageModel, arguments: dict[str, Any], system: str | None = None) -> None:
        self.lm, self.arguments = lm, arguments
        self.messages: list[dict[str, str]] = []
        self.begin(system)

    def begin(self, system: str | None = None) -> None:
        self.messages = [{"role": "system", "content": system}] if system else []

    def run(self) -> None:
        if sys.stdin.isatty():
            with suppress(ImportError):
                importlib.import_module("readline")  # keys and a history for input()
            err.print(
                f"{escape(self.lm.name)}, {self.lm.context} tokens of context. /help lists commands.", style="dim"
            )
        for line in _lines():
            word, _, rest = line.strip().partition(" ")
            match word:
                case "":
                    pass
                case "/exit" | "/quit" | "/bye":
                    return
                case "/reset":
                    self.begin(self.messages[0]["content"] if self.messages[:1] and self._has_system else None)
                case "/system":
                    self.begin(rest.strip() or None)
                case "/retry":
                    self.retry()
                case "/help":
                    print(_HELP)
                case _ if word.startswith("/") and "/" not in word[1:]:
                    err.print(f"no command {escape(word)}: /help lists them", highlight=False)
                case _:
                    self.ask(line)

    @property
    def _has_system(self) -> bool:
        return bool(self.messages) and self.messages[0]["role"] == "system"

    def retry(self) -> None:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages or self.messages[-1]["role"] != "user":
            err.print("nothing was asked yet")
            return
        self.ask(self.messages.pop()["content"])

    def ask(self, text: str) -> None:
        """Print the answer as it comes. What Ctrl-C leaves of it is part of the conversation."""
        self.messages.append({"role": "user", "content": text})
        parts: list[str] = []
        start = time.perf_counter()
        try:
            for part in self.lm.chat(self.messages, stream=True, **self.arguments):
                part = part if parts else part.lstrip()
                if part:
                    parts.append(part)
                    write(part)
        except KeyboardInterrupt:
            pass
        except IngotError as error:
            self.messages.pop()
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
            return
        write("\n")
        answer = "".join(parts)
        self.messages.append({"role": "assistant", "content": answer.rstrip()})
        if sys.stdin.isatty() and answer:
            count, seconds = len(self.lm.tokenizer.encode(answer, framed=False)), time.perf_counter() - start
            err.print(f"{count} tokens, {count / seconds:.0f} a second", style="dim", highlight=False)


def _lines() -> Iterator[str]:
    """What the user writes, until the end of input; Ctrl-C drops a line."""
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
