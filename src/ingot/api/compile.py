"""`ingot.compile`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import CompileError
from ingot.support.garbage import no_collection
from ingot.support.limits import Limits, limited

if TYPE_CHECKING:
    import onnx
    import torch

    Model = (
        str | os.PathLike[str] | onnx.ModelProto | torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any]
    )


def compile(
    model: Model,
    example_inputs: Any = None,
    *,
    target: str = "native",
    dynamic: Any = None,
    constants: Mapping[str, Any] | None = None,
    precision: str = "float32",
    threads: int | None = None,
    cache: bool = True,
    fast_math: bool = False,
    weights: Any = None,
    signature: str | None = None,
    inputs: Any = None,
    outputs: Any = None,
    state: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> CompiledModel:
    """Compile a trained model to one native program.

    Args:
        model: a path of an ONNX file, a StableHLO program (text, or portable bytecode), a TFLite model or a `.pt2`, an
            `onnx.ModelProto`, a `torch.export.ExportedProgram`, or an `nn.Module` (with `example_inputs`);
            a TorchScript archive's path, or a ScriptModule (with `example_inputs`);
            or a JAX function, plain or jitted (with `example_inputs`), a `jax.export.Exported` or a lowered one;
            or a `.keras` or HDF5 file of Keras, or a `keras.Model`;
            or TensorFlow's: a SavedModel's folder, a frozen GraphDef's file, a `tf.function` or a concrete one.
        example_inputs: for a module, an archive or a function, a tuple of positional or a dict of keyword arguments.
        target: NAME[:FEATURES]. "native": this machine's CPU with all that it has; "cpu:x86-64-v3", "cpu:znver4",
            "cpu:aarch64" and others: any machine that has these features, compiled from any machine (docs/targets.md);
            "cuda:sm_90a,sm_80": NVIDIA GPUs of these architectures (docs/gpu.md); "c": a `.c` and a `.h` file.
        dynamic: which sizes vary from call to call. ONNX: by default those that the file leaves open; False or
            {"batch": 1} fixes them, {"length": (1, 512)} bounds them, {"x": {2: 48}} says it of input x's axis 2.
            PyTorch: {"x": {0: "batch"}}, True, or torch.export.Dim objects; by default none.
        precision: what weights are stored in: "float32", "bfloat16" (the values they are multiplied with, too) or
            "float16". Sums are f32 and so is everything else; inputs and outputs keep their types (docs/precision.md).
        threads: of the compiled model's calls; by default the physical cores this process may use.
        cache: keep the compiled program on disk, so that compiling the same model again only loads it.
        fast_math: allow rewrites that hold for real numbers but not for all floats (off by default).
        limits: what a model may grow into before it is refused, such as `ingot.Limits(seconds=3600)`.
        weights: arguments that always have these values: they become constants, and calls leave them out. A mapping
            from their names (or indices) to arrays, {"axes": np.array([1])}, or a safetensors file; of a JAX function
            also indices or names alone, whose example values they have. A PyTorch model holds its own.
        constants: the same as weights, of an ONNX model.
        signature: which of the signatures of a SavedModel ("serving_default" if there is one) or of a TFLite model
            (that of its first subgraph).
        outputs: which of the model's outputs, by name; of a TensorFlow model also tensors within.
        inputs: of a TensorFlow model, tensors by name to use in place of its inputs (docs/tensorflow.md).
        state: inputs that the compiled model keeps from call to call, and the outputs that they are in the next one:
            {"past_key": "present_key"}. They are zeros at first (`set_state`), of fixed size, and written in place
            where that can be (docs/runtime.md). Of a PyTorch module: by itself, the buffers that its forward writes.

    Returns: a `CompiledModel`, called with the model's inputs; one of PyTorch, JAX or a `tf.function` with the
    program's own arguments and results. Where values of inputs decide ranks, axes or branches it has a program for each
    value, compiled when a call brings it; `weights` gives them ahead.

    Raises InputError for arguments that do not fit, ImportModelError for a model that cannot be read,
    UnsupportedOpError naming every op that Ingot does not have, LimitError for a model that grows beyond a limit,
    CompileError where no code could be made.
    """
    if constants is not None:
        weights = {**constants, **(weights or {})}
    try:
        with limited(limits), no_collection():
            from ingot.driver.compile import Options, compile_model  # not above: `ingot.load` does without the compiler
            from ingot.driver.open import Request

            request = Request(example_inputs, dynamic, weights, signature, inputs, outputs, state)
            return compile_model(model, request, Options(target, thread_count(threads), cache, fast_math, precision))
    except RecursionError as error:
        raise CompileError("the model is nested deeper than Ingot follows") from error
    except MemoryError as error:
        raise CompileError("out of memory", got=str(error) or "no room", fix="use a larger machine") from error
