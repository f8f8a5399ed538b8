"""Folding of operators into their producers: an added vector becomes the bias, an activation an option.

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
    """The indices of the operands of a product: values, weights and bias. For other operators the first is the
    values."""
    return (2, 1, 3) if op.name == "TRANSPOSE_CONV" else (0, 1, 2)


def fold(model: Model) -> None:
    """Change `model` in place, and remove tensors without readers."""
    uses = model.uses()
    makers = {op.outputs[0]: op for op in model.operators}
    folded: set[int] = set()
    for number, op in enumerate(model.operators):
        if _is_mean(model, op, makers, uses) or _is_undone(model, op, makers):
            folded.add(number)
            continue
        producer = makers.get(op.inputs[0]) if op.inputs else None
        if op.name in ("ADD", "MUL") and (producer is None or producer.name not in WEIGHTED):
            op.inputs.reverse()
            producer = makers.get(op.inputs[0])
            if producer is None or producer.name not in WEIGHTED:
                op.inputs.reverse()
                producer = None
        if producer is None or uses.get(op.inputs[0]) != 1:
            continue
        if _into_weights(model, op, producer):
            pass
        elif op.name in _ACTIVATIONS and producer.name in _WITH_ACTIVATION and not producer.options.get("activation"):
            producer.options["activation"] = _ACTIVATIONS[op.name]
        else:
            continue
        producer.outputs = op.outputs
        makers[op.outputs[0]] = producer
        folded.add(number)
    model.operators = [op for number, op in enumerate(model.operators) if number not in folded]
    for op in model.operators:
        if op.name in WEIGHTED and op.inputs[-1] < 0:  # convolution kernels require a bias
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
    factor = np.float32(value.reshape(-1)[0])
    if factor != (count if op.name == "DIV" else np.float32(1) / count):
        return False
    total.name = "MEAN"
    model.tensors[total.outputs[0]].node = None  # its values have changed
    chain[0].outputs = op.outputs
    makers[op.outputs[0]] = chain[0]
    return True


def _is_undone(model: Model, op: Operator, makers: dict[int, Operator]) -> bool:
    """DIV(MUL(x, n), n)   ->   x, for an AVERAGE_POOL_2D x and its window counts n"""
    producer = makers.get(op.inputs[0]) if op.name == "DIV" else None
    if producer is None or producer.name != "MUL" or producer.inputs[0] not in makers:
        return False
    a, b = (model.tensors[o.inputs[1]].data for o in (producer, op))
    source = makers[producer.inputs[0]]
    if a is None or b is None or not (np.broadcast_to(a, np.broadcast_shapes(a.shape, b.shape)) == b).all():
        return False
    if source.name != "AVERAGE_POOL_2D" or len(source.outputs) != 1:
        return False
    source.outputs = op.outputs
    makers[op.outputs[0]] = source
    return True


def _into_weights(model: Model, op: Operator, producer: Operator) -> bool:
    """Fold a sum with a constant, per channel or for all, into a product's bias, or a factor into its weights and
    bias."""
    if op.name not in ("ADD", "SUB", "MUL") or producer.name not in WEIGHTED or producer.options.get("activation"):
        return False
    t, channels = model.tensors[op.inputs[1]], model.tensors[producer.outputs[0]].shape[-1]
    if (
        t.data is None
        or t.dtype != "f32"
        or model.tensors[op.outputs[0]].shape != model.tensors[producer.outputs[0]].shape
    ):
        return False
    if t.data.size != 1 and (t.shape[-1:] != (channels,) or t.data.size != channels):
        return False
    value = np.broadcast_to(t.data.reshape(-1), channels)
    _, w_place, bias_place = places(producer)
    bias = model.tensors[producer.inputs[bias_place]].data if producer.inputs[bias_place] >= 0 else None
    if op.name != "MUL":
        value = -value if op.name == "SUB" else value
        producer.inputs[bias_place] = model.constant(value.copy() if bias is None else bias + value)
        return True
    w = model.tensors[producer.inputs[w_place]]
    if w.data is None or w.quantization is not None:
        return False
    axis = CHANNEL_AXIS[producer.name]
    scaled = w.data * value.reshape([-1 if d == axis else 1 for d in range(w.data.ndim)])
    producer.inputs[w_place] = model.constant(scaled, w.name)
    if bias is not None:
        producer.inputs[bias_place] = model.constant(bias * value)
    return True
