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
    """Compile a model with its smallest weights set to zero: by magnitude, without training.

    Args:
        model, example_inputs, dynamic, threads: as for `compile`.
        sparsity: the fraction of the weights of products and convolutions to set to zero, such as 0.9; or one fraction
            for each product by name, with wildcards: {"*intermediate*": 0.9}. Products that match no name stay as they
            are; later entries win.
        block: the number of neighboring outputs that are kept or dropped as a group, by their mean magnitude: 1, 4 or
            16.
        scope: "layer": the fraction holds for each product's own weights; "global": for the weights of all products.

    Returns: a compiled model whose `sparsity` is that of each product; `ingot.quantize` takes it, too
        (docs/how-to/sparse.md).

    Raises InputError for arguments that do not fit, for names that match no product and for models that have no product
    of constant float32 weights, and what `compile` raises.
    """
    from ingot.transform.prune import prune_model  # as in `compile`

    return prune_model(model, sparsity, block, scope, example_inputs, dynamic, threads)
