"""Operators into those before them: a sum with a vector is the bias, an activation an option.

CONV_2D(x, w), ADD(bias), RELU   ->   CONV_2D(x, w, bias) {activation = RELU}
"""

from __future__ import annotations

import numpy as np

from ingot.exporters.tflite.records import Model, Operator

WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
CHANNEL_AXIS = {"CONV_2D": 0, "TRANSPOSE_CONV": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}  # of weights
_ACTIVATIONS = {"RELU": 1, "RELU6": 3}
_WITH_ACTIVATION = (
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "FULLY_CONNECTED",
    "ADD",
    "SUB",
    "MUL",
    "AVERAGE_POOL_2D",
    "MAX_POOL_2D",
)


def places(op: Operator) -> tuple[int, int, int]:
    """Which operands are the values, the weights and the bias of a product, or of another operator its values."""
    return (2, 1, 3) if op.name == "TRANSPOSE_CONV" else (0, 1, 2)


def fold(model: Model) -> None:
    """Change `model` in place; tensors that nothing reads any more go."""
    uses = model.uses()
    makers = {op.outputs[0]: op for op in model.operators}
    gone: set[int] = set()
    for number, op in enumerate(model.operators):
        if _is_mean(model, op, makers, uses) or _is_undone(model, op, makers):
            gone.add(number)
            continue
        before = makers.get(op.inputs[0]) if op.inputs else None
        if op.name in ("ADD", "MUL") and (before is None or before.name not in WEIGHTED):
            op.inputs.reverse()
            before = makers.get(op.inputs[0])
            if before is None or before.name not in WEIGHTED:
                op.inputs.reverse()
                before = None
        if before is None or uses.get(op.inputs[0]) != 1:
            continue
        if _into_weights(model, op, before):
            pass
        elif op.name in _ACTIVATIONS and before.name in _WITH_ACTIVATION and not before.options.get("activation"):
            before.options["activation"] = _ACTIVATIONS[op.name]
        else:
            continue
        before.outputs = op.outputs
        makers[op.outputs[0]] = before
        gone.add(number)
    model.operators = [op for number, op in enumerate(model.operators) if number not in gone]
    for op in model.operators:
        if op.name in WEIGHTED and op.inputs[-1] < 0:  # kernels of convolutions ask for one
            op.inputs[-1] = model.constant(np.zeros(model.tensors[op.outputs[0]].shape[-1], np.float32))
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


def _is_undone(model: Model, op: Operator, makers: dict[int, Operator]) -> bool:
    """DIV(MUL(x, n), n)   ->   x: means of windows, by their counts"""
    before = makers.get(op.inputs[0]) if op.name == "DIV" else None
    if before is None or before.name != "MUL" or before.inputs[0] not in makers:
        return False
    a, b = (model.tensors[o.inputs[1]].data for o in (before, op))
    source = makers[before.inputs[0]]
    if a is None or b is None or not (np.broadcast_to(a, np.broadcast_shapes(a.shape, b.shape)) == b).all():
        return False
    if source.name != "AVERAGE_POOL_2D" or len(source.outputs) != 1:
        return False
    source.outputs = op.outputs
    makers[op.outputs[0]] = source
    return True


def _into_weights(model: Model, op: Operator, before: Operator) -> bool:
    """A product's sum with a number or one by channel is its bias; a factor is one of its weights and of its bias."""
    if op.name not in ("ADD", "SUB", "MUL") or before.name not in WEIGHTED or before.options.get("activation"):
        return False
    t, channels = model.tensors[op.inputs[1]], model.tensors[before.outputs[0]].shape[-1]
    if (
        t.data is None
        or t.dtype != "f32"
        or model.tensors[op.outputs[0]].shape != model.tensors[before.outputs[0]].shape
    ):
        return False
    if t.data.size != 1 and (t.shape[-1:] != (channels,) or t.data.size != channels):
        return False
    value = np.broadcast_to(t.data.reshape(-1), channels)
    _, w_place, bias_place = places(before)
    bias = model.tensors[before.inputs[bias_place]].data if before.inputs[bias_place] >= 0 else None
    if op.name != "MUL":
        value = -value if op.name == "SUB" else value
        before.inputs[bias_place] = model.constant(value.copy() if bias is None else bias + value)
        return True
    w = model.tensors[before.inputs[w_place]]
    if w.data is None or w.quantization is not None:
        return False
    axis = CHANNEL_AXIS[before.name]
    scaled = w.data * value.reshape([-1 if d == axis else 1 for d in range(w.data.ndim)])
    before.inputs[w_place] = model.constant(scaled, w.name)
    if bias is not None:
        before.inputs[bias_place] = model.constant(bias * value)
    return True
