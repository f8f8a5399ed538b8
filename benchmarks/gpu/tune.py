"""On a machine with an NVIDIA GPU: tune the models of `benchmarks.gpu.models`, all into one table.

    python -m benchmarks.gpu.tune [--database tuned.jsonl] [--minutes 4] [--models resnet50_b1,bert_b1]

Each model is a process of its own. They compile beside each other and measure one at a time; what still runs when the
minutes are over is killed, and what it had written stays. Behind it the table's entries are counted, and with `--ship`
those that are faster than the model's own choice are added to the ones that come with Ingot.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.run import MODELS

LEFT = 25.0  # seconds of the minutes that a search leaves to its end: the model before and after
START = 45.0  # and to its beginning, where the model is traced and compiled


def tune_one(name: str, target: str, database: Path, budget: float) -> None:
    import torch

    from benchmarks.gpu.models import models, prepared
    from ingot.driver.open import Request, open_model
    from ingot.ir.node import Input
    from ingot.tune.run import tune

    torch.set_num_threads(2)
    net, inputs = prepared(models()[name])
    opened = open_model(net, Request(example_inputs=inputs))
    given = opened.flatten(inputs, {}) if opened.flatten else inputs
    labels = [n.op.label for n in opened.graph.inputs if isinstance(n.op, Input)]
    feeds = {label: x.numpy() if isinstance(x, torch.Tensor) else x for label, x in zip(labels, given, strict=False)}
    del net
    report = tune(
        opened.graph, feeds, threads=1, budget=budget, database=database, target=target,
        watch=lambda text, seconds: print(f"{name} {seconds:6.1f} s  {text}", flush=True),
    )  # fmt: skip
    for row in report.rows:
        if row.state == "tuned":
            print(f"{name}: {row.kernel} {row.result} x{row.count} {row.gain:.2f}x of {row.share:.1%}: {row.choice}")
    for text in (*report.wrong_results, *report.failures):
        print(f"{name}: left out: {text[:300]}")
    before, now = 1e3 * report.untuned_seconds, 1e3 * report.seconds
    print(f"{name}: kernels {before:.3f} ms untuned, {now:.3f} ms tuned, {report.gain:.3f}x", flush=True)


def ship(database: Path) -> int:
    """How many entries were added to the shipped ones."""
    from ingot.pipeline import tuning

    found = [e for e in tuning.read(database).values() if isinstance(e, tuning.Entry) and e.choice != e.baseline]
    tuning.add(tuning.SHIPPED, found)
    return len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, default=Path("tuned.jsonl"))
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ship", action="store_true")
    parser.add_argument("--one", default="", help="of the models, in this process")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of its search")
    asked = parser.parse_args()
    if asked.one:
        tune_one(asked.one, asked.target, asked.database, asked.budget)
        return 0
    end = time.monotonic() + 60 * asked.minutes
    names = asked.models.split(",")
    budget = max(10.0, 60 * asked.minutes - LEFT - START)
    command = [sys.executable, "-m", "benchmarks.gpu.tune", "--target", asked.target, "--database", str(asked.database)]
    workers = str(max(1, (os.cpu_count() or 1) // 4))  # of each: they do not all compile at once
    running = {
        name: subprocess.Popen(
            [*command, "--one", name, "--budget", str(budget)], start_new_session=True,
            env={**os.environ, "INGOT_WORKERS": workers, "INGOT_TUNING": str(asked.database)},
        )
        for name in names
    }  # fmt: skip
    for name, process in running.items():
        try:
            process.wait(max(end - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            print(f"{name}: killed when the time was over", flush=True)
    failed = [name for name, process in running.items() if process.wait()]
    from ingot.pipeline import tuning

    entries = [e for e in tuning.read(asked.database).values() if isinstance(e, tuning.Entry)]
    print(f"{len(entries)} sites, {sum(e.choice != e.baseline for e in entries)} faster than the model's choice; "
          f"ended early: {', '.join(failed) or 'none'}")  # fmt: skip
    if asked.ship:
        print(f"{ship(asked.database)} entries are shipped: {tuning.SHIPPED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
