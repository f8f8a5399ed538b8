"""`run_decompositions` with a table that keeps what Ingot has as one op."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram, default_decompositions

from ingot.frontends.torch.aten import ATEN
from ingot.frontends.torch.recurrence import whole_recurrences


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """`program` functionalized: writes become values, autocast regions casts, unknown composites core aten.

    Every op that has a handler stays whole: performance comes from importing the composite.
    """
    table = default_decompositions()
    for op in list(table.keys()):
        if isinstance(op, torch._ops.OpOverload) and op_name(op) in ATEN:
            table.pop(op)
    with whole_recurrences():
        return program.run_decompositions(table)


def op_name(op: torch._ops.OpOverload) -> str:
    """`aten.relu.default`, as the tables write it."""
    return f"{op._schema.name.replace('::', '.')}.{op._overloadname}"
