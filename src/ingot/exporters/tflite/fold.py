"""Operators into those before them: a sum with a vector is the bias, an activation an option.

CONV_2D(x, w), ADD(bias), RELU   ->   CONV_2D(x, w, bias) {activation = RELU}
"""

from __future__ import annotations

import numpy as np

from ingot.exporters.tflite.records import Model, Operator

WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
_ACTIVATIONS = {"RELU": 1, "RELU6": 3}
_WITH_ACTIVATION = (*WEIGHTED, "ADD", "SUB", "MUL", "AVERAGE_POOL_2D", "MAX_POOL_2D")


def fold(model: Model) -> None:
    """Change `model` in place; tensors that nothing reads any more go."""
    uses = model.uses()
    makers = {op.outputs[0]: op for op in model.operators}
    gone: set[int] = set()
    for number, op in enumerate(model.operators):
        if _is_mean(model, op, makers, uses):
            gone.add(number)
            continue
        before = makers.get(op.inputs[0]) if op.inputs else None
        if op.name == "ADD" and (before is None or before.name not in WEIGHTED):
            op.inputs.reverse()
            before = makers.get(op.inputs[0])
            if before is None or before.name not in WEIGHTED:
                op.inputs.reverse()
                before = None
        if before is None or uses.get(op.inputs[0]) != 1:
            continue
        if _is_bias(model, op, before):
            before.inputs[2] = model.constant(model.tensors[op.inputs[1]].data.reshape(-1))  # type: ignore[union-attr]
        elif op.name in _ACTIVATIONS and before.name in _WITH_ACTIVATION and not before.options.get("activation"):
            before.options["activation"] = _ACTIVATIONS[op.name]
        else:
            continue
        before.outputs = op.outputs
        makers[op.outputs[0]] = before
        gone.add(number)
    model.operators = [op for number, op in enumerate(model.operators) if number not in gone]
    for op in model.operators:
        if op.name in WEIGHTED and op.inputs[2] < 0:  # kernels of convolutions ask for one
            op.inputs[2] = model.constant(np.zeros(model.tensors[op.outputs[0]].shape[-1], np.float32))
    model.compact()


def _is_mean(model: Model, op: Operator, makers: dict[int, Operator], uses: dict[int, int]) -> bool:
    """DIV(SUM(x), n), DIV(RESHAPE(SUM(x)), n)   ->   MEAN(x), RESHAPE(MEAN(x)); also for MUL by 1 / n."""
    chain: list[Operator] = []
    i = op.inputs[0] if op.name in ("DIV", "MUL") else -1
    while i in makers and uses.get(i) == 1 and len(chain) < 2:
        chain.append(makers[i])
        if chain[-1].name != "RESHAPE":
            break
        i = chain[-1].inputs[0]
    if not chain or chain[-1].name != "SUM":
        return False
    total, value = chain[-1], model.tensors[op.inputs[1]].data
    axes = model.tensors[total.inputs[1]].data
    if value is None or axes is None or value.size != 1:
        return False
    count = np.float32(np.prod([model.tensors[total.inputs[0]].shape[int(a)] for a in axes]))
    given = np.float32(value.reshape(-1)[0])
    if given != (count if op.name == "DIV" else np.float32(1) / count):
        return False
    total.name = "MEAN"
    model.tensors[total.outputs[0]].node = None  # it has other values now
    chain[0].outputs = op.outputs
    makers[op.outputs[0]] = chain[0]
    return True


def _is_bias(model: Model, op: Operator, before: Operator) -> bool:
    if op.name != "ADD" or before.name not in WEIGHTED or before.inputs[2] >= 0 or before.options.get("activation"):
        return False
    t = model.tensors[op.inputs[1]]
    channels = model.tensors[before.outputs[0]].shape[-1]
    return t.data is not None and t.shape[-1:] == (channels,) and t.data.size == channels and t.dtype == "f32"
