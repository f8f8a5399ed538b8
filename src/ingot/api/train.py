"""`ingot.train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingot.support.garbage import no_collection

if TYPE_CHECKING:
    from ingot.optim import Optimizer
    from ingot.transform.shard.mesh import Marks, Mesh
    from ingot.transform.train.adversary import Adversary


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
    adversary: Adversary | None = None,
    target: str = "native",
    dynamic: Any = None,
    threads: int | None = None,
    seed: int = 0,
    memory: float | None = None,
    mesh: Mapping[str, int] | Mesh | None = None,
    shard: Marks | None = None,
) -> Any:
    """Compile a training step to one native program: forward, loss, gradients, clipping and the optimizer's update.

        step = ingot.train(net, "cross_entropy", ingot.optim.AdamW(lr=1e-3), (x,))
        for x, y in batches:
            loss, metrics = step(x, y)

    Args:
        model: one of these: an `nn.Module`, whose dropout and batch norms train if they are in training mode; an ONNX
            file or `ModelProto`, whose dropout and batch norms are switched to training mode; a `keras.Model` of the
            JAX backend, as `fit` calls it; a JAX function whose first argument is a tree of parameters.
        loss: "cross_entropy", "nll", "mse", "l1", "huber", "bce_with_logits" or "kl_div" of the model's first result
            and one target (classes on axis 1), as torch.nn.functional defines them, kl_div with "batchmean"; or a
            function of the model's framework, (result, *targets) -> scalar; or None if the model's first result is the
            loss.
        optimizer: one of `ingot.optim`: SGD, Adam, AdamW, Lion.
        example_inputs: the arguments of a module, or (parameters, x, ...) of a function. None for ONNX, and for a
            `keras.Model` that declares its inputs.
        example_targets: the arguments of a loss function after the result. A loss given by name needs them only if the
            target's type is not the usual one (i64 classes, or the result's own type).
        metrics: any of "accuracy", "mse", "l1", measured on each batch before the update.
        trainable: patterns of the names of parameters to train ("head.*"); the others are constants. By default all
            floats that require a gradient (PyTorch), all float initializers other than settings (ONNX), all trainable
            variables (Keras), all floats (JAX).
        clip_norm, clip_value: bounds on the global norm of the gradients, and on each element.
        accumulate: the number of calls whose mean gradient makes one update.
        precision: the type of the operands of products: "float32", "bfloat16", "float16" (with a loss scale that
            adapts), "tf32" (float32, multiplied as TF32 by NVIDIA GPUs) or "ieee" (float32, by multiply-adds).
            Parameters, sums and all other values stay as they are.
        skip_nonfinite: skip the update if a gradient is NaN or infinite, so that `first_nan` can name its origin.
        adversary: an `ingot.Adversary`, which attacks the inputs of each batch: adversarial training.
        target, dynamic, threads: as for `compile`.
        seed: the seed of dropout and of other random numbers.
        memory: a limit, met by recomputing values that the backward pass reads. The bits are the same, except where
            loops have to save less. Below 1: a fraction of the bytes that the backward pass would otherwise save; from
            1 on: the bytes of all intermediate values. `step.program.meta["memory"]` and `step.explain(x, y)` report
            the outcome.
        mesh, shard: several devices, as for `compile`, each a process of a group. Example inputs are those of the whole
            batch. Batches that no mark names are split along their first dimension over the axis "dp": a step takes
            its process's part, and its loss is that of the whole batch. Marks of parameters split these, with their
            gradients and the optimizer's state (docs/how-to/several-devices.md).

    Returns: a step that takes the model's arguments followed by the targets, and returns (loss, metrics). It has
    state_dict, trained, save_weights, save_checkpoint, load_checkpoint, save, first_nan (docs/reference/training.md).
    For a target other than this machine: a program to `save`, from which `load` makes a step on the target machine.

    Raises InputError for arguments that do not fit (a loss that is not a float scalar, integers to be trained),
    UnsupportedOpError naming every op that has no gradient, and what `compile` raises.
    """
    with no_collection():
        from ingot.transform.train.run import train_model  # as in `compile`

        return train_model(
            model, loss, optimizer, example_inputs, example_targets, metrics=metrics, trainable=trainable,
            clip_norm=clip_norm, clip_value=clip_value, accumulate=accumulate, precision=precision,
            skip_nonfinite=skip_nonfinite, adversary=adversary, target=target, dynamic=dynamic, threads=threads,
            seed=seed, memory=memory, mesh=mesh, shard=shard,
        )  # fmt: skip
