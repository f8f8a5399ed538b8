"""The commands by purpose. Each is imported when it is used: `ingot run` does not wait for the imports of `ingot
tune`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from inspect import Parameter
from typing import Annotated, Any

try:
    import rich  # noqa: F401
    import typer
except ImportError as error:
    raise SystemExit(f"the command line needs {error.name}; pip install 'ingot-compiler[cli]'") from error

from typer.core import TyperGroup

from ingot import __version__
from ingot.cli import console

# need -> command -> its module below ingot.cli, and the function of another name than the command's
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Compile a model": {"compile": "compile:compile_", "export": "export", "libingot": "libingot"},
    "Run and serve": {
        "run": "run",
        "generate": "language.generate",
        "chat": "language.chat",
        "serve": "serve",
    },
    "Look inside: what is in it, is it right, how fast is it": {
        "inspect": "look.inspect",
        "compare": "look.compare",
        "bench": "look.bench",
        "explain": "look.explain",
        "dump": "look.dump",
    },
    "Why it answers so, and what it can answer": {"attribute": "analysis.attribute", "certify": "analysis.certify"},
    "Make it smaller, faster, better": {
        "tune": "look.tune",
        "prune": "prune",
        "quantize": "quantize",
        "train": "train",
    },
    "This machine": {"machine": "look.machine", "cache": "cache"},
}
_PLACES = {name: (need, place) for need, commands in GROUPS.items() for name, place in commands.items()}


class _Commands(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(_PLACES)  # names that may be meant by others

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_PLACES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _PLACES:
            return None
        need, place = _PLACES[cmd_name]
        module, _, function = place.partition(":")
        entry = getattr(import_module(f"ingot.cli.{module}"), function or cmd_name)
        if isinstance(entry, typer.Typer):  # a command of several verbs
            command: Any = typer.main.get_command(entry)
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode=app.rich_markup_mode)
            single.command(cmd_name)(_with_quiet(entry))
            command = typer.main.get_command(single)
        command.rich_help_panel, command.name = need, cmd_name
        return command


def _with_quiet(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the option --quiet, which `console.command_context` reads."""

    @wraps(command)
    def call(*, quiet: bool, **arguments: Any) -> None:
        console.quiet.set(quiet)
        command(**arguments)

    hint = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
    option = Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=hint)
    parameters = [*inspect.signature(command, eval_str=True).parameters.values(), option]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


app = typer.Typer(
    name="ingot",
    cls=_Commands,
    help="Ingot compiles a trained model to one native program, for a CPU, an NVIDIA GPU or in C.",
    epilog="Exit codes: " + "; ".join(f"{code} {text}" for code, text in console.CODES.items()) + ".",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
