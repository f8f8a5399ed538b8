"""Images of which anchors load vectors of channels: operands of depthwise convolutions and of kernels' gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ops.views import base_of, strided_base, zero_padding
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class ChannelImages:
    """The images of a graph. unpadded: Pads, and slices of them, that all readers leave out, with what they read: a
    padded image would be a copy of one that is given, or that is an output as well."""

    images: frozenset[Node] = frozenset()
    unpadded: Mapping[Node, Node] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph) -> ChannelImages:
        users, outputs = graph.uses(), set(graph.outputs)
        images, anchors, unpadded = set[Node](), set[Node](), dict[Node, Node]()
        for n in graph.nodes():
            is_gradient = isinstance(n.op, ops.KernelGradient)
            if is_gradient or ops.is_depthwise(n):
                images.update(n.inputs if is_gradient else n.inputs[:1])
            if n.op.depthwise if isinstance(n.op, ops.KernelGradient) else ops.is_depthwise(n):
                anchors.add(n)
        for pad in {pad for n in anchors if (pad := zero_padding(n.inputs[0])) is not None}:
            x, slices = pad.inputs[0], {u for u in users[pad] if zero_padding(u) is pad}
            readers = {(u, r) for r in (pad, *slices) for u in users.get(r, ()) if u not in slices}
            are_skipping = all(u in anchors and [i for i in u.inputs if i is r] == [u.inputs[0]] for u, r in readers)
            is_copy = base_of(x).is_leaf or x in outputs
            if are_skipping and is_copy and outputs.isdisjoint((pad, *slices)):
                unpadded |= dict.fromkeys((pad, *slices), x)
                images.add(x)
        return ChannelImages(frozenset(images), unpadded)

    def is_scattered(self, view: Node) -> bool:
        """Whether an image is a view whose channels are apart in memory: a copy is made to load vectors from."""
        base = strided_base(view, {}) if view in self.images else None
        return base is not None and base[1].strides[-1] != 1


__all__ = ["ChannelImages"]
