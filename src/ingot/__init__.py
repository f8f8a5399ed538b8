"""Ingot: a trained model goes in, one optimized native program comes out.

    import ingot
    m = ingot.compile("model.onnx")          # or a ModelProto, an nn.Module with example inputs, an ExportedProgram
    y = m(x)
    m.save("model.ingot"); m = ingot.load("model.ingot")

Importing this package imports the runtime only: a saved artifact needs neither the compiler nor a framework.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ingot.runtime import artifact
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.runtime.training import META, TrainingStep
from ingot.support.errors import CompileError, IngotError
from ingot.support.garbage import no_collection
from ingot.support.limits import Limits, limited

if TYPE_CHECKING:
    import onnx
    import torch

    from ingot import optim as optim
    from ingot.differentiated import DifferentiatedModel
    from ingot.optim import Optimizer
    from ingot.pruned import PrunedModel
    from ingot.quantization.run import QuantizedModel

    Model = (
        str | os.PathLike[str] | onnx.ModelProto | torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any]
    )

__all__ = [
    "CompiledModel", "IngotError", "Limits", "__version__", "compile", "export", "grad", "jit", "load", "prune",
    "quantize", "train", "value_and_grad",
]  # fmt: skip

__version__ = "0.1.0"


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
) -> Any:
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

    Returns: a `CompiledModel` for ONNX (a `SpecializedModel` where values of inputs decide ranks or axes: it compiles
    for each value when a call brings it; `weights` gives them ahead); for PyTorch a callable with the model's own
    arguments and results. Compiled models have inputs, outputs, save, dump, explain.

    Raises InputError for arguments that do not fit, ImportModelError for a model that cannot be read,
    UnsupportedOpError naming every op that Ingot does not have, LimitError for a model that grows beyond a limit,
    CompileError where no code could be made.
    """
    if constants is not None:
        weights = {**constants, **(weights or {})}
    try:
        with limited(limits), no_collection():
            from ingot.compiler import Options, compile_model  # imported when it is used: loading must stay quick
            from ingot.opening import Request

            request = Request(example_inputs, dynamic, weights, signature, inputs, outputs, state)
            return compile_model(model, request, Options(target, thread_count(threads), cache, fast_math, precision))
    except RecursionError as error:
        raise CompileError("the model is nested deeper than Ingot follows") from error
    except MemoryError as error:
        raise CompileError(
            "out of memory", got=str(error) or "no room", fix="compile it on a larger machine"
        ) from error


def export(
    model: Any,
    path: str | os.PathLike[str],
    example_inputs: Any = None,
    *,
    dynamic: Any = None,
    weights: Any = None,
    inline: bool = False,
) -> None:
    """Write a model as a StableHLO program (text), for XLA, TPUs, IREE and others.

    Args:
        model, example_inputs, dynamic, weights: as for `compile`.
        path: the file to write. Its last arguments are the weights, which lie beside it in a safetensors file.
        inline: keep the weights in the text instead.

    Raises what `compile` raises for a model that cannot be read, and UnsupportedOpError naming every op that has no
    form in StableHLO.
    """
    from ingot.exporter import export_model  # as above

    export_model(model, Path(path), example_inputs, dynamic, weights, inline)


def quantize(
    model: Model | Any,
    samples: Any,
    labels: Any = None,
    *,
    metric: Callable[..., Any] | None = None,
    at_least: float | None = None,
    latency_ms: float | None = None,
    size_mb: float | None = None,
    seconds: float = 60.0,
    example_inputs: Any = None,
    dynamic: Any = None,
    formats: Sequence[str] | None = None,
    batch: int = 1,
    threads: int | None = None,
    seed: int = 0,
    table: str | os.PathLike[str] | None = None,
) -> QuantizedModel:
    """Compile a float model with a number format of its own for each product, chosen by measurement on this machine.

    Args:
        model, example_inputs, dynamic: as for `compile`. Without inputs, the first sample is the example.
        samples: what the model is called with: a mapping from inputs to arrays of many samples along their first axis,
            which are cut into calls of `batch`, or a sequence of calls, each a mapping, a tuple or one array. A part is
            kept apart, and what is promised is checked on it. latency: of the first call.
        labels: of the samples, handed to `metric`.
        metric: (outputs of each call as a list, labels if there are any) -> a number, higher is better. Without one it
            is the cosine of the outputs to the float model's.
        at_least: the part of the float model's metric that is kept, such as 0.99. latency_ms: of a call. size_mb: of
            code and weights. Without any of them: what is fastest within 0.99 of the metric, or a cosine of 0.997.
        seconds: about how long to search. formats: what to try, of float32, bfloat16, float16, int8, int8-dynamic,
            int16, weight8, weight4. seed: of what is kept apart.
        table: a file that keeps what was measured; a search with the same one repeats no measurement.

    Returns: a compiled model with a `report` (docs/quantize.md).

    Raises InputError for samples, a metric or a model that do not fit, ConstraintError with the nearest models that
    were measured where the constraints cannot be kept, and what `compile` raises.
    """
    from ingot.quantization.run import Asked, quantize_model  # as above

    asked = Asked(metric, at_least, latency_ms, size_mb, seconds, formats, threads, seed)
    return quantize_model(
        model, samples, labels, example_inputs=example_inputs, dynamic=dynamic, batch=batch, table=table, asked=asked
    )


def prune(
    model: Model | Any,
    sparsity: float | Mapping[str, float],
    *,
    block: int = 4,
    scope: Literal["layer", "global"] = "layer",
    example_inputs: Any = None,
    dynamic: Any = None,
    threads: int | None = None,
) -> PrunedModel:
    """Compile a model with the smallest of its weights as zeros: by magnitude, without training.

    Args:
        model, example_inputs, dynamic, threads: as for `compile`.
        sparsity: the part of the weights of products and convolutions that become zeros, such as 0.9; or for products
            by name, with wildcards: {"*intermediate*": 0.9}. Others stay as they are; later entries win.
        block: how many neighbouring outputs are kept or dropped together, by their mean magnitude: 1, 4 or 16.
        scope: "layer": the part of each product's own weights; "global": of all of them together.

    Returns: a compiled model with the `sparsity` of each product; `ingot.quantize` takes it, too (docs/sparse.md).

    Raises InputError for arguments that do not fit, names of no product, and models without products of constant
    float32 weights, and what `compile` raises.
    """
    from ingot.pruned import prune_model  # as above

    return prune_model(model, sparsity, block, scope, example_inputs, dynamic, threads)


def value_and_grad(
    model: Any,
    example_inputs: Any = None,
    *,
    wrt: str | Sequence[str] | None = None,
    target: str = "native",
    dynamic: Any = None,
    threads: int | None = None,
) -> DifferentiatedModel:
    """Compile a model whose one result is a loss, together with the loss's gradients by its inputs.

    Args:
        model, example_inputs, target, dynamic, threads: as for `compile`; the model's result is one float.
        wrt: the inputs to differentiate by, by name; all that hold floats unless given.

    Returns: a callable with the model's own arguments that gives (loss, {input: gradient}) (docs/training.md).

    Raises InputError for a loss that is no scalar and for inputs that are no floats, UnsupportedOpError naming all ops
    that have no reverse rule, and what `compile` raises.
    """
    with no_collection():
        from ingot.compiler import Options  # as above
        from ingot.differentiated import differentiate

        options = Options(target, thread_count(threads))
        return differentiate(model, example_inputs, wrt, dynamic, options, value=True)


def grad(
    model: Any,
    example_inputs: Any = None,
    *,
    wrt: str | Sequence[str] | None = None,
    target: str = "native",
    dynamic: Any = None,
    threads: int | None = None,
) -> DifferentiatedModel:
    """Compile the gradients of a model whose one result is a loss: as `value_and_grad`, without the loss.

    Returns: a callable with the model's own arguments that gives {input: gradient}.
    """
    with no_collection():
        from ingot.compiler import Options  # as above
        from ingot.differentiated import differentiate

        options = Options(target, thread_count(threads))
        return differentiate(model, example_inputs, wrt, dynamic, options, value=False)


def train(
    model: Any,
    loss: str | Callable[..., Any] | None,
    optimizer: Optimizer,
    example_inputs: Any = None,
    example_targets: Any = (),
    *,
    metrics: Sequence[str] = (),
    trainable: Sequence[str] | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    precision: str = "float32",
    skip_nonfinite: bool = False,
    target: str = "native",
    dynamic: Any = None,
    threads: int | None = None,
    seed: int = 0,
    memory: float | None = None,
) -> Any:
    """Compile a step of training to one native program: forward, loss, gradients, clipping and the optimizer's update.

        step = ingot.train(net, "cross_entropy", ingot.optim.AdamW(lr=1e-3), (x,))
        for x, y in batches:
            loss, metrics = step(x, y)

    Args:
        model: an `nn.Module`, whose dropout and batch norms train where it is in training mode; an ONNX file or
            `ModelProto`, whose batch norms and dropout are put into training mode; a `keras.Model` of the JAX backend,
            as `fit` calls it; or a JAX function whose first argument is a tree of parameters.
        loss: "cross_entropy", "nll", "mse", "l1", "huber", "bce_with_logits" or "kl_div", of the model's first result
            and one target (classes on axis 1), as torch.nn.functional has them, kl_div by its "batchmean"; or a
            function of the model's framework, (result, *targets) -> scalar; None where the model's first result is the
            loss.
        optimizer: one of `ingot.optim`: SGD, Adam, AdamW, Lion.
        example_inputs: of a module, its arguments; of a function, (parameters, x, ...). None for ONNX, and for a
            `keras.Model` that declares its inputs.
        example_targets: what a loss function is given behind the result; of a loss by name only where the target's type
            is not the usual one (i64 classes, or the result's own type).
        metrics: of "accuracy", "mse", "l1", measured on each batch before the update.
        trainable: patterns of parameters' names ("head.*") to train; the others are constants. By default all floats
            that require a gradient (PyTorch), all float initializers that are no settings (ONNX), all trainable
            variables (Keras), all floats (JAX).
        clip_norm, clip_value: bounds of all gradients' common norm, and of each element.
        accumulate: calls whose mean gradient makes one update.
        precision: what products take their operands in: "float32", "bfloat16" or "float16" (with a scale of the loss
            that adapts). Parameters, sums and everything else stay as they are.
        skip_nonfinite: make no update where a gradient is NaN or infinite, so that `first_nan` can tell whose it is.
        target, dynamic, threads: as for `compile`. seed: of dropout and other random numbers.
        memory: a limit, kept by computing values again where the backward pass reads them, with the same bits but where
            loops have to keep less. Below 1: a share of the bytes that are kept for the backward pass without it; else
            the bytes of all intermediate values together. What came of it stands in `step.program.meta["memory"]` and
            in `step.explain(x, y)`.

    Returns: a step that is called with the model's arguments and the targets behind them, and gives (loss, metrics); it
    has state_dict, trained, save_weights, save_checkpoint, load_checkpoint, save, first_nan (docs/training.md). For a
    target that this machine is not: a program to `save`; what `load` makes of the file there is a step.

    Raises InputError for arguments that do not fit (a loss that is no float scalar, integers that were to be trained),
    UnsupportedOpError naming all ops that have no reverse rule, and what `compile` raises.
    """
    with no_collection():
        from ingot.training.run import train_model  # as above

        return train_model(
            model, loss, optimizer, example_inputs, example_targets, metrics=metrics, trainable=trainable,
            clip_norm=clip_norm, clip_value=clip_value, accumulate=accumulate, precision=precision,
            skip_nonfinite=skip_nonfinite, target=target, dynamic=dynamic, threads=threads, seed=seed, memory=memory,
        )  # fmt: skip


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """A JAX function, compiled at the first call with arguments of a tree, shapes and types. A decorator, with or
    without options (threads, cache, fast_math, precision). Inside of a function that JAX traces it is a callback.
    """
    from ingot.compiler import jit as jit_  # as above

    return jit_(fn, **options)


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> CompiledModel:
    """Load a saved program: milliseconds, numpy alone.

    What `ingot.train` made goes on training: a `TrainingStep`.

    Raises ArtifactError for a file that is truncated, corrupted, of another version or for another machine.
    """
    program = artifact.load(Path(path))
    made = TrainingStep if META in program.meta else CompiledModel
    return made(program, threads=threads)


def __getattr__(name: str) -> Any:
    """`ingot.optim`, which is of the compiler, when it is first asked for."""
    if name != "optim":
        raise AttributeError(f"module 'ingot' has no attribute {name!r}")
    return importlib.import_module("ingot.optim")
