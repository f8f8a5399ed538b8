"""`ingot.compile`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import CompileError, InputError
from ingot.support.garbage import no_collection
from ingot.support.limits import Limits, limited

if TYPE_CHECKING:
    import onnx
    import torch

    from ingot.transform.shard.mesh import Marks, Mesh

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
    activations: str = "float32",
    threads: int | None = None,
    cache: bool = True,
    fast_math: bool = False,
    weights: Any = None,
    signature: str | None = None,
    inputs: Any = None,
    outputs: Any = None,
    state: Mapping[str, str] | None = None,
    mesh: Mapping[str, int] | Mesh | None = None,
    shard: Marks | None = None,
    rank: int | None = None,
    device_memory: int | None = None,
    placement: str = "strict",
    limits: Limits | None = None,
) -> CompiledModel:
    """Compile a trained model to one native program.

    Args:
        model: one of these:
            ONNX: the path of a file, or an `onnx.ModelProto`;
            PyTorch: a `torch.export.ExportedProgram`, the path of a `.pt2`, or an `nn.Module` with `example_inputs`;
            TorchScript: the path of an archive, or a ScriptModule, with `example_inputs`;
            JAX: a function, plain or jitted, with `example_inputs`, a `jax.export.Exported` or a lowered function;
            StableHLO: the path of a program, as text or portable bytecode;
            Keras: the path of a `.keras` or HDF5 file, or a `keras.Model`;
            TensorFlow: the folder of a SavedModel, the file of a frozen GraphDef, a `tf.function` or a concrete one;
            TFLite: the path of a file;
            a language model: a GGUF file, or a folder of Hugging Face with config.json and safetensors, for the logits
            of a chunk of tokens (`ingot.LanguageModel` generates text).
        example_inputs: for a module, an archive or a function: a tuple of positional arguments, or a dict of keyword
            arguments.
        target: NAME[:FEATURES]. "native": this machine's CPU with all its features. "cpu:x86-64-v3", "cpu:znver4",
            "cpu:aarch64" and others: any machine that has these features, compiled from any machine
            (docs/reference/targets.md).
            "cuda:sm_90a,sm_80": NVIDIA GPUs of these architectures (docs/reference/gpu.md). "hip:gfx942": AMD's, which
            nobody has run yet. "c": a `.c` and a `.h` file.
        dynamic: the sizes that vary from call to call. ONNX: by default the sizes that the file leaves open;
            False or {"batch": 1} fixes them, {"length": (1, 512)} bounds them, {"x": {2: 48}} fixes axis 2 of input x.
            PyTorch: {"x": {0: "batch"}}, True, or torch.export.Dim objects; by default none.
        precision: the type in which weights are stored: "float32", "bfloat16" (which the values multiplied with them
            take, too) or "float16". Sums and all other values stay f32; inputs and outputs keep their types
            (docs/reference/precision.md). "tf32": float32, which NVIDIA GPUs may cut to 10 bits of fraction where they
            multiply it. "ieee": float32, multiplied by multiply-adds alone.
        activations: what weights of few bits are multiplied with: "float32", or "int8", values rounded to 8 bits in
            blocks, as llama.cpp does unasked: products of bytes, several times as fast (docs/reference/quantized.md).
        threads: the threads of a call; by default the physical cores that this process may use.
        cache: keep the compiled program on disk, so that compiling the same model again only loads it.
        fast_math: allow rewrites that hold for real numbers but not for all floats (off by default).
        device_memory: the bytes of a GPU's memory that the program may take; see `ingot.load`.
        placement: "strict": every step runs on the target. "measured": ops whose weights do not fit into device_memory
            run on the CPU where this machine takes less time for that than for copying the weights to the GPU in each
            call; `plan` and `explain` show where each part runs and what is copied.
        limits: bounds on time, memory and sizes, beyond which the model is refused: `ingot.Limits(seconds=3600)`.
        weights: arguments whose values never change. They become constants, and calls leave them out. Either a mapping
            from names (or indices) to arrays, {"axes": np.array([1])}, or the path of a safetensors file. For a JAX
            function also indices or names alone, which take the example's values. A PyTorch model holds its own.
        constants: the same as `weights`, for an ONNX model.
        signature: the signature of a SavedModel ("serving_default" if it has one) or of a TFLite model (by default that
            of its first subgraph).
        outputs: the names of the outputs to compute; for an ONNX or TensorFlow model also of values inside the graph.
        inputs: for a TensorFlow model, names of tensors to use as inputs in place of its own
            (docs/reference/tensorflow.md).
        state: inputs that the compiled model keeps from call to call, each with the output that replaces it:
            {"past_key": "present_key"}. They have fixed sizes, start as zeros (see `set_state`) and are updated in
            place where possible (docs/inside/runtime.md). Buffers that a PyTorch module's forward writes become state
            without being named.
        mesh: several devices, {"dp": 2, "tp": 4}: each is a process of a group (`ingot.launch`, torchrun), which gets
            the program of its rank; `ingot.simulate(mesh)` has all of them in this process
            (docs/how-to/several-devices.md). The axis "pp" alone is a pipeline: a stage for each
            device.
        shard: tensors that are split over the mesh, by patterns of the names of weights, inputs and outputs:
            {"*.q_proj.weight": ("tp", 0)} splits dimension 0 over the axis tp. Others follow from these.
        rank: compile another rank's program than that of this process, to save it.

    Returns: a `CompiledModel`. It is called with the model's inputs; if it comes from PyTorch, JAX or a `tf.function`,
    with the program's own arguments, and it returns the program's own results. Where values of inputs decide ranks,
    axes or branches, it compiles one program for each value when a call brings it; `weights` fixes such values at once.

    Raises InputError for arguments that do not fit, ImportModelError for a model that cannot be read,
    UnsupportedOpError naming every op that Ingot does not support, LimitError for a model that exceeds a limit, and
    CompileError if no code can be generated.
    """
    if constants is not None:
        weights = {**constants, **(weights or {})}
    try:
        with limited(limits), no_collection():
            from ingot.driver.compile import Options, compile_model  # not above: `ingot.load` does without the compiler
            from ingot.driver.open import Request

            request = Request(example_inputs, dynamic, weights, signature, inputs, outputs, state)
            options = Options(target, thread_count(threads), cache, fast_math, precision, device_memory, activations)
            if placement not in ("strict", "measured"):
                raise InputError("placement", expected="strict or measured", got=repr(placement))
            if placement == "measured":
                if mesh is not None:
                    raise InputError('placement="measured"', expected="one device", got="a mesh")
                from ingot.transform.placement.run import compile_placed

                return compile_placed(model, request, options)
            if mesh is None:
                if shard is not None or rank is not None:
                    raise InputError("shard and rank", expected="a mesh, too", got="none", fix='mesh={"tp": 2}')
                return compile_model(model, request, options)
            from ingot.transform.shard.run import compile_sharded

            return compile_sharded(model, request, options, mesh, shard, rank)
    except RecursionError as error:
        raise CompileError("the model is nested deeper than Ingot follows") from error
    except MemoryError as error:
        raise CompileError("out of memory", got=str(error) or "no room", fix="use a larger machine") from error
