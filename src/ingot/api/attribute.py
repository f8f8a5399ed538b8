"""`ingot.attribute` and `ingot.attribution`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ingot.runtime.cpu.pool import thread_count
from ingot.support.garbage import no_collection

if TYPE_CHECKING:
    from ingot.transform.attribute.run import AttributionModel, MethodName


def attribute(
    model: Any,
    x: Any,
    *,
    method: MethodName = "integrated_gradients",
    target: Any = None,
    baseline: Any = None,
    output: int | str = 0,
    steps: int = 50,
    stdev: float | None = None,
    window: int | Sequence[int] | None = None,
    stride: int | Sequence[int] | None = None,
    wrt: Sequence[str] | None = None,
    dynamic: Any = None,
    threads: int | None = None,
    seed: int = 0,
) -> Any:
    """How much each element of the inputs contributes to a score of the model.

        a = ingot.attribute(net, x, target=3)             # of x's shape: the path from zeros to x
        a = ingot.attribute("bert.onnx", {"input_ids": ids, "attention_mask": mask}, baseline={"input_ids": 103})

    Args:
        model, dynamic, threads: as for `compile`. An `nn.Module` is compiled with an open batch if it allows that.
        x: the inputs of a call, as the example inputs of `compile`: an array, a tuple, or a dict by name.
        method: "integrated_gradients": the mean gradient on the straight path from the baseline to x, times x less
            baseline (Sundararajan et al. 2017); "smoothgrad": the mean gradient at x with noise (Smilkov et al. 2017);
            "gradient_x_input": the gradient times x, less the baseline if one is given; "occlusion": by how much the
            score falls where a window of x is replaced by the baseline (Zeiler and Fergus 2014).
        target: the class: an index, or one for each example; a tuple of indices (or an array [batch, n]) if scores have
            several axes. None: the class of the largest score of each example.
        baseline: what x is compared with, of its shape or one that broadcasts to it; a dict by name for several inputs.
            None: zeros, and token 0.
        output: the result whose scores to explain, by number or name.
        steps: the number of points: Gauss-Legendre's of the path, or samples with noise.
        stdev: of the noise, in the units of x; by default 0.15 times the range of each example's values.
        window, stride: of occlusion, in elements along the axes of an example, or one number for all axes. By default
            windows lie side by side, the smallest cubes of which at most 1024 cover the example.
        wrt: the names of the inputs to attribute to; by default those of floats and those that index tables, such as
            token ids. The others stay as they are.
        seed: of the noise; the same seed gives the same attributions.

    Returns: one array of each attributed input's shape: an array, or a tuple of several. Attributions of token ids are
    the sums over their embeddings, which are varied in their place. Examples of a batch must not depend on one another.

    Raises InputError for arguments that do not fit, such as a target that is not there or a baseline with NaN,
    UnsupportedOpError naming every op that has no gradient, and what `compile` raises.
    """
    from ingot.transform.attribute.run import in_order  # as in `compile`

    program = attribution(
        model, x, method=method, baseline=baseline is not None, output=output, steps=steps, stdev=stdev, window=window,
        stride=stride, wrt=wrt, dynamic=dynamic, threads=threads, seed=seed,
    )  # fmt: skip
    args, kwargs = in_order(x)
    return program(*args, **kwargs, target=target, baseline=baseline)


def attribution(
    model: Any,
    example_inputs: Any = None,
    *,
    method: MethodName = "integrated_gradients",
    baseline: bool = False,
    output: int | str = 0,
    steps: int = 50,
    stdev: float | None = None,
    window: int | Sequence[int] | None = None,
    stride: int | Sequence[int] | None = None,
    wrt: Sequence[str] | None = None,
    dynamic: Any = None,
    threads: int | None = None,
    seed: int = 0,
    compile_target: str = "native",
) -> AttributionModel:
    """Compile a model's attributions to one program, to call many times and to save.

        explain = ingot.attribution(net, (x,))
        a = explain(x, target=3)
        explain.save("explain.ingot")            # ingot.load("explain.ingot")(x, np.array([3])): with numpy alone

    Args: as for `attribute`, and
        baseline: whether calls take a baseline.
        compile_target: as `target` of `compile`; for "c" all sizes are fixed (`dynamic=False`).

    Returns: a callable that takes the model's arguments, `target` and `baseline` (docs/how-to/attributions.md).

    Raises what `attribute` raises.
    """
    with no_collection():
        from ingot.driver.compile import Options  # as in `compile`
        from ingot.driver.open import Request
        from ingot.transform.attribute.run import Settings, attribution_model

        settings = Settings(method, output, baseline, steps, stdev, window, stride, wrt, seed)
        options = Options(compile_target, thread_count(threads))
        return attribution_model(model, Request(example_inputs, dynamic), settings, options)
