"""A session on a GPU, from what matters most to what can wait: conformance, models, kernels and their alternatives.

    python -m benchmarks.gpu.run [--minutes 20] [--only models,decode] [--folder FOLDER] [--list]

Each stage is processes of its own with a limit, after which they are killed: a kernel that hangs costs its stage. A
stage that has a log in the folder is left out, so that a session that was cut off goes on where it was; delete the log
to run it again. Models are compiled beside the first stages, on the other cores. `report.json` is written after each
stage: what it was, how it ended, its seconds and the last lines of its log.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MODELS = (
    "resnet50_b1", "bert_b1", "llama1b_token", "gpt2_s512", "vit_b_b1", "efficientnet_b0_b1", "convnext_tiny_b1",
    "mobilenet_v3_b1", "llama1b_s512", "resnet50_b32", "bert_b32", "vit_b_b32", "unet_b1",
)  # fmt: skip
TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow")
CONFORMANCE = "tests/conformance/test_targets.py"
LINES = 40  # of a log that the report has


@dataclass(frozen=True)
class Stage:
    """arguments: of Python. limit: seconds. alone: nothing else may run on the machine, as it is timed."""

    name: str
    arguments: tuple[str, ...]
    limit: float
    alone: bool = True


def stages() -> list[Stage]:
    """In order. What is right comes first: a time of a wrong result is none."""
    every = "--models", ",".join(MODELS)
    ahead = [Stage("compile", ("-m", "benchmarks.gpu.models", "--compile-only", *every), 600, False)]
    right = [
        Stage("conformance", (*TESTS, "-n", "8", CONFORMANCE, "-k", "cuda and not null"), 360, False),
        Stage("torch", (*TESTS, "tests/frontends/torch/test_on_gpu.py"), 180, False),
    ]
    models = [
        Stage(f"model {name}", ("-m", "benchmarks.gpu.models", "--models", name, "--inductor", "--cached"), 150)
        for name in MODELS
    ]
    kernels = [
        Stage("host", ("-m", "benchmarks.gpu.host", "--gpu"), 60),
        Stage("decode", ("-m", "benchmarks.gpu.decode"), 120),
        Stage("eight_bits", ("-m", "benchmarks.gpu.eight_bits"), 60),
        Stage("irregular", ("-m", "benchmarks.gpu.irregular", "--seconds", "75"), 90),
        Stage("conditional", ("-m", "benchmarks.gpu.conditional"), 30),
        *(
            Stage(f"training {kind}", ("-m", "benchmarks.gpu.ingot_train", "--precisions", kind), 270)
            for kind in ("float32", "bfloat16")
        ),
        Stage("tune", ("-m", "benchmarks.gpu.tune", "--minutes", "4"), 270),
    ]
    architectures = [
        Stage(f"architectures {kind}", ("-m", "benchmarks.gpu.architectures", "--dtype", kind), 300, False)
        for kind in ("float16", "float32")
    ]
    architectures.append(Stage("open_sizes", ("-m", "benchmarks.gpu.open_sizes"), 240, False))
    return [*ahead, *right, *models[:4], *kernels, *models[4:], *architectures]


class _Running:
    """A stage's process, with all that it starts in a group of its own."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage, self.begin = stage, time.monotonic()
        self.log = folder / f"{stage.name.replace(' ', '_')}.log"
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, *stage.arguments], stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, seconds: float) -> dict[str, object]:
        """How it ended; killed behind its limit, or so many seconds."""
        limit = min(self.stage.limit - (time.monotonic() - self.begin), seconds)
        try:
            ended = f"exit {self._process.wait(max(limit, 0.0))}"
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            ended = "killed behind its limit"
        taken, lines = time.monotonic() - self.begin, self.log.read_text(errors="replace").splitlines()
        print(f"{self.stage.name:28} {taken:6.1f} s  {ended:24} {lines[-1][:120] if lines else ''}", flush=True)
        return {"stage": self.stage.name, "ended": ended, "seconds": taken, "log": lines[-LINES:]}


def run(chosen: list[Stage], folder: Path, minutes: float) -> list[dict[str, object]]:
    """The stages that have no log yet, until the time is over. Those that are timed wait for those that run beside."""
    folder.mkdir(parents=True, exist_ok=True)
    report, end = folder / "report.json", time.monotonic() + 60 * minutes
    rows: list[dict[str, object]] = json.loads(report.read_text()) if report.exists() else []
    beside: list[_Running] = []

    def note(running: _Running) -> None:
        rows.append(running.wait(end - time.monotonic()))
        report.write_text(json.dumps(rows, indent=1))

    for stage in chosen:
        if time.monotonic() >= end:
            print(f"no time is left for {stage.name}")
        elif (folder / f"{stage.name.replace(' ', '_')}.log").exists():
            print(f"{stage.name:28} was run before")
        elif stage.alone:
            while beside:
                note(beside.pop(0))
            note(_Running(stage, folder))
        else:
            beside.append(_Running(stage, folder))
    while beside:
        note(beside.pop(0))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--only", default="", help="stages whose names begin so, with commas")
    parser.add_argument("--folder", type=Path, default=Path("gpu-session"))
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    starts = tuple(s for s in asked.only.split(",") if s) or ("",)
    chosen = [s for s in stages() if s.name.startswith(starts)]
    if asked.list:
        for stage in chosen:
            print(f"{stage.name:28} {stage.limit:5.0f} s  python {' '.join(stage.arguments)}")
        return 0
    rows = run(chosen, asked.folder, asked.minutes)
    return int(any(row["ended"] != "exit 0" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
