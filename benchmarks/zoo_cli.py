"""`python -m benchmarks.zoo`: list the zoo, export it, check the exports, print which operators it uses."""

import argparse
import gc
import sys
import traceback

from benchmarks import export, zoo


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("command", choices=("list", "export", "verify"))
    parser.add_argument("names", nargs="*", help="models (default: all of --tier)")
    parser.add_argument("--tier", type=int, choices=(1, 2), help="only this tier")
    chosen = parser.parse_args(arguments)
    failures = 0
    for name in chosen.names or zoo.names(chosen.tier):
        model = zoo.get(name)
        if chosen.command == "list":
            print(f"{model.tier} {name:32} {model.build} {dict(model.options)}")
            continue
        try:
            if chosen.command == "export":
                print(name, model.to_onnx(), flush=True)
                continue
            check = export.verify(model)
            print(f"{name:32} {check.exporter:11} opset {check.opset} worst {check.worst:.1e} {check.seconds:5.1f} s", flush=True)
            failures += check.worst > 1e-4
        except Exception as error:  # a report over many models: the rest must still run
            failures += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{name:32} FAILED {type(error).__name__}: {str(error)[:400]} ({last.filename}:{last.lineno})", flush=True)
        finally:
            model.__dict__.pop("net", None)
            gc.collect()
    sys.exit(1 if failures else 0)
