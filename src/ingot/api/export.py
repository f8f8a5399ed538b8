"""`ingot.export`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


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
        path: the file to write. The weights are its last arguments, and are stored in a safetensors file next to it.
        inline: store the weights in the text instead.

    Raises what `compile` raises for a model that cannot be read, and UnsupportedOpError naming every op that StableHLO
    cannot express.
    """
    from ingot.driver.open import Request, open_model  # not above: `ingot.load` does without the compiler
    from ingot.exporters.stablehlo import write

    write(open_model(model, Request(example_inputs, dynamic, weights)).graph, Path(path), inline)
