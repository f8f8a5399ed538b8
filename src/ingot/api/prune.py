"""`ingot.prune`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ingot.api.compile import Model
    from ingot.transform.prune import PrunedModel


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
    from ingot.transform.prune import prune_model  # as in `compile`

    return prune_model(model, sparsity, block, scope, example_inputs, dynamic, threads)
