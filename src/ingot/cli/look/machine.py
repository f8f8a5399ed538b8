"""`ingot machine`: show the compiler's description of a machine."""

from __future__ import annotations

from dataclasses import fields

from ingot.cli.console import command_context, machine_line, out, plain_table, print_json
from ingot.cli.options import Json, Target, Threads
from ingot.pipeline.target import features_of, target_of
from ingot.runtime.cpu.pool import thread_count


def machine(target: Target = "native", threads: Threads = None, as_json: Json = False) -> None:
    """Show a machine as the compiler sees it: features, caches, vectors, arithmetic.

    \b
    ingot machine
    ingot machine --target cpu:znver4
    """
    with command_context(as_json):
        features = features_of(target)
        description = target_of(features).machine(features, thread_count(threads), {})
    numbers = {f.name: getattr(description, f.name) for f in fields(description) if f.repr}
    facts = {"target": features.target, "arch": features.arch, "cpu": features.cpu, "features": list(features.features)}
    if as_json:
        print_json(facts | {"machine": numbers})
        return
    line, in_full = machine_line(features), str(features)
    out.print(f"[bold]{line}[/]", highlight=False)
    if in_full != line:
        out.print(in_full, highlight=False)
    table = plain_table("", "", left=("",))
    for name, value in numbers.items():
        table.add_row(name, str(value))
    out.print(table)
