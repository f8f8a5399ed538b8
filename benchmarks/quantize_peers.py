"""`ingot.quantize` beside NNCF and ONNX Runtime's quantizers: the same float models, the same samples.

    python -m benchmarks.quantize_peers [--models FOLDER] [--seconds 30] [TASK ...]

Tasks are those of quantize_tasks.py. Every tool sees the same calls; scores, and cosines to float32's outputs, are of
others. A tool's file runs in ONNX Runtime, in OpenVINO (where it is installed) and in Ingot. Times are the least
processor times of interleaved calls on one thread, told as ratios to Ingot's float32.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
BLOCK, NEAR, NEAR_COSINE = 32, 0.99, 0.997


class _Reader(CalibrationDataReader):
    def __init__(self, calls: Sequence[Call]) -> None:
        self.left = iter(calls)

    def get_next(self) -> Call | None:  # type: ignore[override]
        return next(self.left, None)


def _nbits(task: Task, target: Path) -> Iterator[tuple[str, Callable[[], None]]]:
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

        def make(options: Callable[[], dict[str, Any]] = options) -> None:
            quantizer = tools.MatMulNBitsQuantizer(onnx.load(task.path), **options())
            quantizer.process()
            quantizer.model.save_model_to_file(str(target))  # pyright: ignore[reportAttributeAccessIssue]

        yield f"onnxruntime, {name}", make


def _bytes(task: Task, target: Path, judge: Callable[[list[np.ndarray]], float]) -> Iterator[tuple[str, Callable[[], None]]]:  # fmt: skip  # noqa: E501
    """ONNX Runtime's and NNCF's ways to 8 bits. judge: of the outputs of the calls that tools see."""
    calls, ready = task.calls[: task.seen], target.with_name("ready.onnx")

    def static(per_channel: bool, **options: Any) -> None:
        quant_pre_process(task.path, ready, skip_symbolic_shape=True)
        quantize_static(
            ready, target, _Reader(calls), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8, per_channel=per_channel, **options,
        )  # fmt: skip

    def dynamic() -> None:
        quantize_dynamic(task.path, target, weight_type=QuantType.QInt8, per_channel=True)

    def nncf(control: bool) -> None:
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

    yield "onnxruntime, tensors", lambda: static(False)
    yield "onnxruntime, channels", lambda: static(True)
    if task.transformer:
        yield "onnxruntime, MatMul", lambda: static(True, op_types_to_quantize=["MatMul"])
    yield "onnxruntime, dynamic", dynamic
    yield "nncf", lambda: nncf(False)
    yield "nncf, control", lambda: nncf(True)


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


def run(name: str, models: Path, seconds: float, rounds: int = 25) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        task = TASKS[name](folder, models)
        print(f"\n{name}: {task.seen} calls to quantize with, {len(task.calls) - task.seen} to score by", flush=True)
        exact = float_outputs(task.path, task.calls)
        labels = task.labels or exact
        score = task.score or cosine
        judge = score if task.guided else cosine
        shown = labels if task.guided else exact
        seen, unseen = slice(0, task.seen), slice(task.seen, None)
        tools: dict[str, dict[str, Run]] = {"float32": engines(task.path, task.calls[0])}
        spent = {"float32": 0.0}

        began = time.monotonic()
        asked: dict[str, Any] = {"formats": ("weight4",), "size_mb": task.path.stat().st_size * 0.35e-6} if task.few_bits else {}  # fmt: skip  # noqa: E501
        if task.score is not None and task.guided:
            asked |= {"labels": labels[seen], "metric": lambda o, y: task.score(_firsts(o), y)}  # type: ignore[misc]
        chosen = ingot.quantize(str(task.path), task.calls[seen], threads=1, seconds=seconds, **asked)
        tools["ingot.quantize"] = {"ingot": _in_order(chosen)}
        spent["ingot.quantize"] = time.monotonic() - began
        print(chosen.report, flush=True)

        def told(outputs: list[np.ndarray]) -> float:
            return judge(outputs, shown[seen])

        target = folder / "made.onnx"
        for tool, make in _nbits(task, target) if task.few_bits else _bytes(task, target, told):
            began = time.monotonic()
            try:
                make()
                spent[tool] = time.monotonic() - began
                tools[tool] = engines(target, task.calls[0])
            except Exception as error:  # tools raise anything
                print(f"  {tool}: {type(error).__name__}: {str(error).strip().splitlines()[0][:150]}", flush=True)
        times = interleaved(tools, task.calls[0], rounds)
        base = times["float32", "ingot"]
        kinds = ("onnxruntime", "openvino", "ingot")
        print(f"  {'':22}{'score':>9}{'cosine':>9}{'made in':>9}   " + "".join(f"{k:>13}" for k in kinds))
        for tool, runs in tools.items():
            best = "onnxruntime" if "onnxruntime" in runs else "ingot"
            outputs = [runs[best](c) for c in task.calls[unseen]]
            speeds = [f"{base / times[tool, k]:.2f}x" if k in runs else "" for k in kinds]
            print(
                f"  {tool:22}{score(outputs, labels[unseen]):9.4f}{cosine(outputs, exact[unseen]):9.4f}"
                f"{spent[tool]:8.1f}s   " + "".join(f"{s:>13}" for s in speeds),
                flush=True,
            )


def _firsts(outputs: Sequence[Any]) -> list[np.ndarray]:
    return [o[0] if isinstance(o, tuple) else o for o in outputs]


def interleaved(tools: dict[str, dict[str, Run]], call: Call, rounds: int) -> dict[tuple[str, str], float]:
    """Least seconds of a call, by tool and engine: of processor time, which others do not lengthen."""
    least: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for tool, runs in tools.items():
            for engine, run in runs.items():
                began = time.process_time()
                run(call)
                spent = time.process_time() - began
                least[tool, engine] = min(spent, least.get((tool, engine), spent))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of ONNX files (docs/shipped.md)")
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    for name in args.tasks:
        run(name, args.models, args.seconds)


if __name__ == "__main__":
    main()
