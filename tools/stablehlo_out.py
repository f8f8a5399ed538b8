"""What Ingot writes as StableHLO, run by others: XLA's CPU client, StableHLO's interpreter, IREE; compiled for a TPU.

    python tools/stablehlo_out.py samples            # every sample of every CORE op on XLA's CPU client
    python tools/stablehlo_out.py models --on xla    # the models below; --on xla, eval, iree or tpu
    python tools/stablehlo_out.py models --on tpu --only minilm

Needs jax; `--on iree` the packages iree-base-compiler and iree-base-runtime, `--on tpu` libtpu (no TPU). jaxlib's
classes used here are private: written for jaxlib 0.10.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from ingot import ops  # registers them
from ingot.driver.open import Request, open_model
from ingot.exporters.stablehlo import emit
from ingot.frontends.stablehlo.printer import show
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Op
from ingot.ir.types import TensorType, dtype_of
from ingot.ops import with_random_state
from ingot.passes.model.lower import lower_model_ops
from ingot.pipeline.build import size_hints
from ingot.runtime.state import RANDOM

assert ops
Arrays = Sequence[np.ndarray]
Run = Callable[[str, Arrays], list[np.ndarray]]


def on_xla(text: str, arrays: Arrays) -> list[np.ndarray]:
    """XLA's CPU client."""
    import jax
    from jax._src.interpreters import mlir
    from jaxlib import _jax

    jax.config.update("jax_enable_x64", True)
    device = jax.devices("cpu")[0]
    with mlir.make_ir_context(), mlir.ir.Location.unknown():
        module = mlir.ir.Module.parse(text)
        code = mlir.module_to_bytecode(module)
    loaded = device.client.compile_and_load(code, _jax.DeviceList((device,)), _jax.CompileOptions())
    given = [jax.device_put(_flushed(a), device) for a in arrays]
    return [np.asarray(r) for r in loaded.execute(given)]


def _flushed(array: np.ndarray) -> np.ndarray:
    """Subnormal numbers as 0, as XLA's threads take them."""
    if array.dtype.kind in "iub":
        return array
    try:
        small = np.abs(array) < ml_dtypes.finfo(array.dtype).smallest_normal
    except ValueError:
        return array
    return np.where(small, np.zeros((), array.dtype), array) if array.dtype.itemsize > 1 else array


def on_interpreter(text: str, arrays: Arrays) -> list[np.ndarray]:
    """StableHLO's reference interpreter, which is slow."""
    from jax._src.interpreters import mlir

    with mlir.make_ir_context(), mlir.ir.Location.unknown():
        module = mlir.ir.Module.parse(text)
        values = [mlir.ir.DenseElementsAttr.get(np.asarray(a, order="C"), shape=a.shape) for a in arrays]
        return [np.asarray(r) for r in mlir.hlo.eval_module(module, values)]


def on_iree(text: str, arrays: Arrays) -> list[np.ndarray]:
    """IREE's compiler for CPUs, and its runtime."""
    from iree import compiler, runtime

    flags = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O2", "--iree-input-demote-i64-to-i32=false"]
    code = compiler.compile_str(text, target_backends=["llvm-cpu"], input_type="stablehlo", extra_args=flags)
    config = runtime.Config("local-task")
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, code))
    found = context.modules.model["main"](*(np.asarray(a, order="C") for a in arrays))
    return [np.asarray(r) for r in (found if isinstance(found, tuple | list) else (found,))]


def on_tpu(text: str, arrays: Arrays) -> list[np.ndarray]:
    """libtpu's compiler for a v5e, which no TPU is needed for. Nothing is run: there are no results."""
    _tpu_environment()
    import jax
    from jax._src.interpreters import mlir
    from jax.experimental import topologies
    from jaxlib import _jax

    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    with mlir.make_ir_context(), mlir.ir.Location.unknown():
        module = mlir.ir.Module.parse(text)
        client = topology.devices[0].client
        compiled = client.compile(module, _jax.DeviceList((topology.devices[0],)), _jax.CompileOptions())
    print(f"    executable for {topology.devices[0].device_kind}: {len(compiled.serialize()) / 1e6:.1f} MB")
    assert jax
    return []


def _tpu_environment() -> None:
    import libtpu

    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_LIBRARY_PATH", libtpu.get_library_path())


RUNS: dict[str, Run] = {"xla": on_xla, "eval": on_interpreter, "iree": on_iree, "tpu": on_tpu}


# --- samples


def samples(only: str, run: Run) -> int:
    """Every sample of every CORE op against the interpreter. The number that differs."""
    core = [cls for _, cls in sorted(Op.REGISTRY.items()) if cls.__module__.startswith("ingot.ops.core")]
    tried = bad = 0
    for cls in core:
        for i, (op, arrays) in enumerate(cls.samples()):
            if only and only not in cls.name:
                continue
            inputs = tuple(Input(f"x{n}", TensorType(dtype_of(a), a.shape))() for n, a in enumerate(arrays))
            graph = Graph(inputs, op(*inputs).results)
            tried += 1
            try:
                with np.errstate(all="ignore"):
                    arrays = tuple(map(_flushed, arrays)) if run is on_xla else arrays
                    expected = interpret(graph, arrays)
                    results = run(show(emit(graph).module), arrays)
                    for got, want in zip(results, expected, strict=True):
                        _check(got.reshape(want.shape), want)
            except Exception as error:
                bad += 1
                kinds = [a.dtype.name + str(list(a.shape)) for a in arrays]
                said = str(error).strip().splitlines()
                print(f"{cls.name}[{i}] {op} {kinds}: {type(error).__name__}: {' | '.join(said[:6])[:400]}", flush=True)
    print(f"{tried - bad} of {tried} samples agree")
    return bad


def _check(got: np.ndarray, want: np.ndarray) -> None:
    if got.dtype != want.dtype:
        raise AssertionError(f"dtype {got.dtype}, not {want.dtype}")
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    rough = {"bfloat16": 1.6e-2, "float16": 2e-3}.get(want.dtype.name, 1e-5 if want.dtype.itemsize > 2 else 0.13)
    a, b = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=rough, atol=rough)


# --- models


def models() -> Iterator[tuple[str, Callable[[], tuple[Graph, Arrays]]]]:
    """Name, and what makes the graph and its inputs: the ONNX files in $INGOT_MODELS, and PyTorch architectures."""
    folder = Path(os.environ.get("INGOT_MODELS", "/nowhere"))
    for path in sorted(folder.glob("*.onnx")):
        yield path.stem, lambda path=path: _of_file(path)
    yield from _torch_models()


def _of_file(path: Path) -> tuple[Graph, Arrays]:
    graph = open_model(path, Request()).graph
    graph = graph.substitute(dict(size_hints(graph)))
    return graph, _arrays(graph)


def _arrays(graph: Graph) -> Arrays:
    rng = np.random.default_rng(0)
    out: list[np.ndarray] = []
    for node in graph.inputs:
        shape = tuple(int(d) for d in node.shape)
        dtype = np.dtype(node.dtype.numpy)
        if dtype.kind == "b":
            out.append(rng.random(shape) < 0.5)
        elif dtype.kind in "iu":
            out.append(rng.integers(0, 4, shape).astype(dtype))
        else:
            out.append(rng.normal(size=shape).astype(dtype))
    return out


def _torch_models() -> Iterator[tuple[str, Callable[[], tuple[Graph, Arrays]]]]:
    import torch

    def of(make: Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]) -> tuple[Graph, Arrays]:
        torch.manual_seed(0)
        net, inputs = make()
        graph = open_model(_perturbed(net).eval(), Request(inputs)).graph
        return graph, [t.numpy() for t in inputs]

    def image(
        name: str, size: int = 64, **options: object
    ) -> Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor]]]:
        def make() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
            import timm

            return timm.create_model(name, num_classes=16, **options), (torch.randn(1, 3, size, size),)

        return make

    def text(name: str, **settings: int) -> Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor]]]:
        def make() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
            import transformers

            config = getattr(transformers, f"{name}Config")(**settings)
            model = getattr(transformers, f"{name}Model")._from_config(config, attn_implementation="sdpa")

            class Hidden(torch.nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.model = model

                def forward(self, ids: torch.Tensor) -> torch.Tensor:
                    return self.model(input_ids=ids, use_cache=False)[0] if name in _CACHED else self.model(ids)[0]

            return Hidden(), (torch.randint(0, 90, (2, 11)),)

        return make

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
            self.gru = torch.nn.GRU(32, 8, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gru(self.lstm(x)[0])[0]

    class Selected(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values, places = torch.topk(x, 5)
            return values, places, torch.cumsum(x, 1), x.sort(dim=1).values, torch.fft.rfft(x).abs(), x.argmax(1)

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
    wide = {"intermediate_size": 64}
    made = {
        "resnet18": image("resnet18"), "mobilenetv3": image("mobilenetv3_small_050"),
        "effnet": image("efficientnet_b0"), "convnext": image("convnext_atto"), "regnet": image("regnetx_002"),
        "vit": image("vit_tiny_patch16_224", 224), "mixer": image("mixer_s32_224", 224),
        "densenet": image("densenet121"),
        "bert": text("Bert", **small, **wide), "roberta": text("Roberta", **small, **wide),
        "gpt2": text("GPT2", n_embd=32, n_layer=2, n_head=4, vocab_size=99),
        "llama": text("Llama", **small, **wide, num_key_value_heads=2),
        "mistral": text("Mistral", **small, **wide, num_key_value_heads=2),
        "qwen": text("Qwen2", **small, **wide, num_key_value_heads=2),
        "lstm": lambda: (Recurrent(), (torch.randn(3, 7, 8),)),
        "selected": lambda: (Selected(), (torch.randn(3, 24),)),
        "transformer": lambda: (
            torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
            (torch.randn(2, 9, 32),),
        ),
    }  # fmt: skip
    for name, make in made.items():
        yield name, lambda make=make: of(make)


_CACHED = ("GPT2", "Llama", "Mistral", "Qwen2")


def _perturbed(net: object) -> object:
    """With statistics of batch norms that say something."""
    import torch

    assert isinstance(net, torch.nn.Module)
    for m in net.modules():
        if isinstance(m, torch.nn.BatchNorm2d) and m.running_mean is not None and m.running_var is not None:
            m.running_mean.normal_(0, 0.1)
            m.running_var.uniform_(0.5, 1.5)
    return net


def run_models(run: Run, only: Sequence[str], most: int) -> int:
    bad = done = 0
    for name, make in models():
        if only and not any(o in name for o in only):
            continue
        if done >= most:
            break
        try:
            graph, arrays = make()
            emitted = emit(lower_model_ops(with_random_state(graph, RANDOM)), False)
            text = show(emitted.module)
            began = time.perf_counter()
            results = run(text, [*arrays, *emitted.weights.values()])
            seconds = time.perf_counter() - began
            wanted = interpret(graph, arrays) if results else []
            error = _error(results, wanted)
            # a constant proves nothing
            says = not wanted or any(w.size > 1 and w.astype(np.float64).std() > 1e-3 for w in wanted)
            ok = error <= 1e-5 and says
            said = f"error {error:.1e}" if results else "compiled"
            said = said if says else "a constant"
            print(f"{name:44s} {text.count(chr(10)):6d} lines  {seconds:6.1f} s  {said}", flush=True)
        except Exception as problem:
            ok = False
            said = traceback.format_exception_only(problem)[-1].strip()
            print(f"{name:44s} {said[:1500]}", flush=True)
        done += 1
        bad += not ok
    print(f"{done - bad} of {done} models")
    return bad


def _error(results: Arrays, expected: Arrays) -> float:
    """The greatest, as a part of the greatest magnitude of its output."""
    worst = 0.0
    for got, want in zip(results, expected, strict=True):
        a, b = got.astype(np.float64).reshape(want.shape), want.astype(np.float64)
        finite = b[np.isfinite(b)]
        scale = float(np.abs(finite).max()) if finite.size else 1.0
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if wrong.any():
            worst = max(worst, float(np.abs(a - b)[wrong].max()) / max(scale, 1e-30))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("samples", "models"))
    parser.add_argument("--on", choices=tuple(RUNS), default="xla")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--most", type=int, default=1000)
    given = parser.parse_args()
    if given.what == "samples":
        return samples(given.only[0] if given.only else "", RUNS[given.on]) > 0
    return run_models(RUNS[given.on], given.only, given.most) > 0


if __name__ == "__main__":
    sys.exit(main())
