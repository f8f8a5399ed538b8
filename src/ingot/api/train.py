"""`ingot.train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ingot.support.garbage import no_collection

if TYPE_CHECKING:
    from ingot.optim import Optimizer


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
        from ingot.transform.train.run import train_model  # as in `compile`

        return train_model(
            model, loss, optimizer, example_inputs, example_targets, metrics=metrics, trainable=trainable,
            clip_norm=clip_norm, clip_value=clip_value, accumulate=accumulate, precision=precision,
            skip_nonfinite=skip_nonfinite, target=target, dynamic=dynamic, threads=threads, seed=seed, memory=memory,
        )  # fmt: skip
