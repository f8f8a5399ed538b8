"""`python -m benchmarks.zoo`: list the zoo, export it, check the exports, print which operators it uses."""

import argparse
import gc
import sys
import traceback
from collections import Counter

from benchmarks import export, zoo


def _counts(title: str, counts: Counter[str]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{name} {count}" for name, count in ordered)
    return f"- {title} ({sum(counts.values())}): {listed}"


def operators(model: zoo.Model) -> str:
    """Markdown: the model's operators with counts, as ONNX and as aten at three levels of decomposition."""
    lines = [f"\n## {model.name}", _counts("onnx", export.onnx_ops(model))]
    program = model.to_exported()
    lines.append(_counts("aten, as exported", export.aten_ops(program)))
    lines.append(_counts("aten, run_decompositions({})", export.aten_ops(program.run_decompositions({}))))
    try:
        core = export.aten_ops(program.run_decompositions())
    except ValueError as error:  # seen with gpt2: torch's own decomposition of attention asks for an impossible view
        lines.append(f"- aten, run_decompositions(): torch fails: {error}")
        return "\n".join(lines)
    if sum(core.values()) > 20 * len(core) and model.net.fixed:
        lines.append("- aten, run_decompositions(): the recurrence is unrolled, not listed")
    else:
        lines.append(_counts("aten, run_decompositions()", core))
    return "\n".join(lines)


def perform(command: str, model: zoo.Model) -> bool:
    """Do `command` for one model and print its line; whether it went well."""
    if command == "list":
        print(f"{model.tier} {model.name:32} {model.build} {dict(model.options)}")
        return True
    if command == "export":
        print(model.name, model.to_onnx(), flush=True)
        return True
    if command == "ops":
        print(operators(model), flush=True)
        return True
    check = export.verify(model)
    figures = f"opset {check.opset} worst {check.worst:.1e} {check.seconds:5.1f} s"
    print(f"{model.name:32} {check.exporter:11} {figures}", flush=True)
    return check.worst <= 1e-4


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("command", choices=("list", "export", "verify", "ops"))
    parser.add_argument("names", nargs="*", help="models (default: all of --tier)")
    parser.add_argument("--tier", type=int, choices=(1, 2), help="only this tier")
    chosen = parser.parse_args(arguments)
    failures = 0
    for name in chosen.names or zoo.names(chosen.tier):
        model = zoo.get(name)
        try:
            failures += not perform(chosen.command, model)
        except Exception as error:  # a report over many models: one that fails is told, the rest still run
            failures += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename}:{last.lineno}"
            print(f"{name:32} FAILED {type(error).__name__}: {str(error)[:400]} ({where})", flush=True)
        finally:
            model.__dict__.pop("net", None)
            gc.collect()
    sys.exit(1 if failures else 0)
