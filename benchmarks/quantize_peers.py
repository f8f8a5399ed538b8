"""`ingot.quantize` beside NNCF and ONNX Runtime's quantizers: the same float models, the same samples.

    python -m benchmarks.quantize_peers --models FOLDER --out FOLDER [--seconds 30] [--limit 600] [TASK ...]
    python -m benchmarks.quantize_peers --out FOLDER --told

Tasks are those of quantize_tasks.py. Every tool sees the same calls; scores, and cosines to float32's outputs, are of
others. A tool's file runs in ONNX Runtime, in OpenVINO (where it is installed) and in Ingot. Times are the least
processor times of interleaved calls on one thread, told as ratios to Ingot's float32.

Each task runs in a process of its own. What was found is in OUT/TASK.json, what tools made in OUT/TASK: a second run
goes on where the first one ended. A tool that takes longer than `--limit` seconds is told as such. `--told` prints the
tables of what was found.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # pyright: ignore[reportMissingImports]
from onnxruntime.quantization import (  # pyright: ignore[reportMissingImports]
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    matmul_nbits_quantizer,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process  # pyright: ignore[reportMissingImports]

import ingot
from benchmarks.quantize_tasks import TASKS, Call, Task, cosine, float_outputs

Run = Callable[[Call], np.ndarray]
Make = Callable[[Path], None]  # writes a file
BLOCK, NEAR, NEAR_COSINE = 32, 0.99, 0.997


class _Reader(CalibrationDataReader):
    def __init__(self, calls: Sequence[Call]) -> None:
        self.left = iter(calls)

    def get_next(self) -> Call | None:  # type: ignore[override]
        return next(self.left, None)


def _nbits(task: Task, folder: Path) -> Iterator[tuple[str, Make]]:
    """ONNX Runtime's ways to weights of 4 bits."""
    tools = matmul_nbits_quantizer
    configs: dict[str, Callable[[], dict[str, Any]]] = {
        "nearest": lambda: {"block_size": BLOCK},
        "HQQ": lambda: {"algo_config": tools.HQQWeightOnlyQuantConfig(BLOCK)},
        "GPTQ": lambda: {
            "algo_config": tools.GPTQWeightOnlyQuantConfig(_Reader(task.calls[: task.seen]), block_size=BLOCK)
        },
    }
    for name, options in configs.items():

        def make(target: Path, options: Callable[[], dict[str, Any]] = options) -> None:
            quantizer = tools.MatMulNBitsQuantizer(onnx.load(task.path), **options())
            quantizer.process()
            quantizer.model.save_model_to_file(str(target))  # pyright: ignore[reportAttributeAccessIssue]

        yield f"onnxruntime, {name}", make


def _bytes(task: Task, folder: Path, judge: Callable[[list[np.ndarray]], float]) -> Iterator[tuple[str, Make]]:
    """ONNX Runtime's and NNCF's ways to 8 bits. judge: of the outputs of the calls that tools see."""
    calls, ready = task.calls[: task.seen], folder / "ready.onnx"

    def static(target: Path, per_channel: bool, **options: Any) -> None:
        quant_pre_process(task.path, ready, skip_symbolic_shape=True)
        quantize_static(
            ready, target, _Reader(calls), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8, per_channel=per_channel, **options,
        )  # fmt: skip

    def dynamic(target: Path) -> None:
        quantize_dynamic(task.path, target, weight_type=QuantType.QInt8, per_channel=True)

    def nncf(target: Path, control: bool) -> None:
        import nncf as tool  # pyright: ignore[reportMissingImports]

        tool.set_log_level(logging.ERROR)
        data, model = tool.Dataset(calls), onnx.load(task.path)
        options: dict[str, Any] = {"subset_size": len(calls)}
        if task.transformer:
            options["model_type"] = tool.ModelType.TRANSFORMER
        if control:

            def validate(candidate: onnx.ModelProto, _: object) -> tuple[float, None]:
                session = ort.InferenceSession(candidate.SerializeToString(), providers=["CPUExecutionProvider"])
                return judge([np.asarray(session.run(None, c)[0]) for c in calls]), None  # pyright: ignore[reportIndexIssue]

            drop = 1 - (NEAR if task.score is not None and task.guided else NEAR_COSINE)
            made = tool.quantize_with_accuracy_control(model, data, data, validate, max_drop=drop, **options)
        else:
            made = tool.quantize(model, data, **options)
        onnx.save(made, target)

    yield "onnxruntime, tensors", lambda t: static(t, False)
    yield "onnxruntime, channels", lambda t: static(t, True)
    if task.transformer:
        yield "onnxruntime, MatMul", lambda t: static(t, True, op_types_to_quantize=["MatMul"])
    yield "onnxruntime, dynamic", dynamic
    yield "nncf", lambda t: nncf(t, False)
    yield "nncf, control", lambda t: nncf(t, True)


def engines(path: Path, call: Call) -> dict[str, Run]:
    """What runs the file."""
    found: dict[str, Run] = {}
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found["onnxruntime"] = lambda x: np.asarray(session.run(None, x)[0])  # pyright: ignore[reportIndexIssue]
    try:
        import openvino  # pyright: ignore[reportMissingImports]

        model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_NUM_THREADS": 1})
        found["openvino"] = lambda x: np.array(model(x)[0])
    except (ImportError, RuntimeError) as error:
        print(f"  openvino: {str(error).strip().splitlines()[-1][:120]}")
    found["ingot"] = _in_order(ingot.compile(str(path), threads=1))
    return found


def _in_order(model: Any) -> Run:
    names = [spec.name for spec in model.inputs]

    def run(call: Call) -> np.ndarray:
        results = model(*(call[n] for n in names))
        return np.asarray(results[0] if isinstance(results, tuple) else results)

    return run


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in what takes longer."""

    def end(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(name: str, models: Path, out: Path, seconds: float, limit: int, rounds: int = 25, most: float = 40) -> None:
    """Everything of one task; writes OUT/TASK.json."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    task = TASKS[name](folder, models)
    print(f"\n{name}: {task.seen} calls to quantize with, {len(task.calls) - task.seen} to score by", flush=True)
    exact = float_outputs(task.path, task.calls)
    labels = task.labels or exact
    score = task.score or cosine
    judge = score if task.guided else cosine
    shown = labels if task.guided else exact
    seen, unseen = slice(0, task.seen), slice(task.seen, None)
    tools: dict[str, dict[str, Run]] = {"float32": engines(task.path, task.calls[0])}
    spent, failed = {"float32": 0.0}, {}

    began = time.monotonic()
    asked: dict[str, Any] = {"formats": ("weight4",), "size_mb": task.path.stat().st_size * 0.35e-6} if task.few_bits else {}  # fmt: skip  # noqa: E501
    if task.score is not None and task.guided:
        asked |= {"labels": labels[seen], "metric": lambda o, y: task.score(_firsts(o), y)}  # type: ignore[misc]
    chosen = ingot.quantize(
        str(task.path), task.calls[seen], threads=1, seconds=seconds, table=folder / "table.json", **asked
    )
    tools[OURS] = {"ingot": _in_order(chosen)}
    spent[OURS] = time.monotonic() - began
    print(chosen.report, flush=True)

    def told(outputs: list[np.ndarray]) -> float:
        return judge(outputs, shown[seen])

    for tool, make in _nbits(task, folder) if task.few_bits else _bytes(task, folder, told):
        target, told_of = folder / f"{_file(tool)}.onnx", folder / f"{_file(tool)}.json"
        try:
            if not told_of.exists():
                told_of.write_text(json.dumps(_made(make, target, limit)))
            state = json.loads(told_of.read_text())
            if "failed" in state:
                failed[tool] = state["failed"]
                continue
            tools[tool], spent[tool] = engines(target, task.calls[0]), state["seconds"]
        except Exception as error:  # what a tool made may not run
            failed[tool] = _told(error)
    times = interleaved(tools, task.calls[0], rounds, most)
    base = times["float32", "ingot"]
    found: dict[str, Any] = {}
    for tool, runs in tools.items():
        best = "onnxruntime" if "onnxruntime" in runs else "ingot"
        outputs = [runs[best](c) for c in task.calls[unseen]]
        found[tool] = {
            "score": score(outputs, labels[unseen]), "cosine": cosine(outputs, exact[unseen]), "seconds": spent[tool],
            "speed": {kind: base / times[tool, kind] for kind in runs},
        }  # fmt: skip
    (out / f"{name}.json").write_text(json.dumps({"tools": found, "failed": failed}, indent=1))


def _made(make: Make, target: Path, limit: int) -> dict[str, Any]:
    """How long it took, or why it failed."""
    began = time.monotonic()
    try:
        with limited(limit):
            make(target)
    except Exception as error:  # tools raise anything
        return {"failed": _told(error)}
    return {"seconds": time.monotonic() - began}


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150]}"


OURS, KINDS = "ingot.quantize", ("onnxruntime", "openvino", "ingot")


def _file(tool: str) -> str:
    return tool.replace(", ", "-").replace(" ", "-")


def table(path: Path) -> str:
    """What was found of a task, as Markdown."""
    found = json.loads(path.read_text())
    lines = [f"| {path.stem} | score | cosine | made in | in {' | in '.join(KINDS)} |", "|---" * 7 + "|"]
    for tool, row in found["tools"].items():
        speeds = " | ".join(f"{row['speed'][k]:.2f}x" if k in row["speed"] else "-" for k in KINDS)
        lines.append(f"| {tool} | {row['score']:.4f} | {row['cosine']:.4f} | {row['seconds']:.0f} s | {speeds} |")
    lines += [f"| {tool} | {why} | | | | | |" for tool, why in found["failed"].items()]
    return "\n".join(lines)


def _firsts(outputs: Sequence[Any]) -> list[np.ndarray]:
    return [o[0] if isinstance(o, tuple) else o for o in outputs]


def interleaved(tools: dict[str, dict[str, Run]], call: Call, rounds: int, most: float) -> dict[tuple[str, str], float]:
    """Least seconds of a call, by tool and engine: of processor time, which others do not lengthen. No more rounds than
    begin within `most` seconds of it."""
    least: dict[tuple[str, str], float] = {}
    first = time.process_time()
    for _ in range(rounds):
        for tool, runs in tools.items():
            for engine, run in runs.items():
                began = time.process_time()
                run(call)
                spent = time.process_time() - began
                least[tool, engine] = min(spent, least.get((tool, engine), spent))
        if time.process_time() - first > most:
            break
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument(
        "--models", type=Path, default=Path("models"), help="folder of ONNX files (docs/appendix/shipped.md)"
    )
    parser.add_argument("--out", type=Path, default=Path("quantize_peers"))
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--limit", type=int, default=600, help="seconds that another tool may take")
    parser.add_argument("--here", action="store_true", help="in this process")
    parser.add_argument("--told", action="store_true")
    args = parser.parse_args()
    if args.here:
        for name in args.tasks:
            run(name, args.models, args.out, args.seconds, args.limit)
    elif not args.told:
        given = ["--models", args.models, "--out", args.out, "--seconds", args.seconds, "--limit", args.limit]
        for name in args.tasks:
            if not (args.out / f"{name}.json").exists():
                subprocess.run([sys.executable, "-m", "benchmarks.quantize_peers", "--here", name, *map(str, given)])
    for path in sorted(args.out.glob("*.json")):
        print(f"\n{table(path)}")


if __name__ == "__main__":
    main()
