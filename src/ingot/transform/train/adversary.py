"""Adversarial training (Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018): the
attack is part of the step and uses the current parameters.

loss(x)   ->   (1 - weight) * loss(x) + weight * loss(x'),  x' = x + step * sign(d loss / d x), ..., within eps of x
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.autodiff import gradients
from ingot.ir.node import Node, rebuild
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number


@dataclass(frozen=True)
class Adversary:
    """An attack on each batch of a training step, by projected gradient ascent of the loss.

    eps: the largest change of each element of a float input. steps: the number of ascent steps. step: the change of an
    element in each; by default 2.5 eps / steps. weight: the weight of the loss at the attacked inputs; the clean
    batch has the rest. lower, upper: the valid range of inputs, such as 0 and 1 for images. inputs: the names of those
    to attack; by default all float inputs, which with a loss function includes float targets. Metrics and buffers are
    those of the attacked inputs.

    Raises InputError for eps or steps that are not above 0, a weight that is not above 0 and at most 1, and a range
    that is empty.
    """

    eps: float
    steps: int = 7
    step: float | None = None
    weight: float = 1.0
    lower: float | None = None
    upper: float | None = None
    inputs: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_number("eps", self.eps, "a number above 0", lambda v: 0 < v < float("inf"))
        check_number("steps", self.steps, "a whole number from 1 to 100", lambda v: 1 <= v <= 100, whole=True)
        check_number("weight", self.weight, "a number above 0, at most 1", lambda v: 0 < v <= 1)
        if self.step is not None:
            check_number("step", self.step, "a number above 0, or None", lambda v: 0 < v < float("inf"))
        for name, value in (("lower", self.lower), ("upper", self.upper)):
            if value is not None:
                check_number(name, value, "a number, or None", lambda v: abs(v) < float("inf"))
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise InputError("adversary", expected="lower < upper", got=f"{self.lower} and {self.upper}")

    def attacked(self, outputs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
        """`outputs`, of which the first is the loss, at attacked inputs. inputs: those of the model. Raises InputError
        for names that are not float inputs."""
        loss = outputs[0]
        floats = {getattr(x.op, "label", ""): x for x in inputs if x.dtype.is_float}
        names = list(floats) if self.inputs is None else list(self.inputs)
        if not names or not floats.keys() >= set(names):
            raise InputError(
                "adversary", expected=f"inputs of floats: {', '.join(floats) or 'none'}", got=names or "none"
            )
        chosen = [floats[name] for name in dict.fromkeys(names)]
        length = 2.5 * self.eps / self.steps if self.step is None else self.step
        points = chosen
        for _ in range(self.steps):
            (value,) = rebuild([loss], dict(zip(chosen, points, strict=True)))
            slopes = gradients(value, points)
            # the derivative of sign is 0, so that no gradient reaches the parameters through the attack
            ascended = [ops.add(p, ops.mul(ops.Sign()(g), length)) for p, g in zip(points, slopes, strict=True)]
            points = [self._within(p, x) for p, x in zip(ascended, chosen, strict=True)]
        attacked = list(rebuild(outputs, dict(zip(chosen, points, strict=True))))
        if self.weight < 1:
            attacked[0] = ops.add(ops.mul(attacked[0], self.weight), ops.mul(loss, 1 - self.weight))
        return attacked

    def _within(self, point: Node, x: Node) -> Node:
        y = ops.minimum(ops.maximum(point, ops.sub(x, self.eps)), ops.add(x, self.eps))
        if self.lower is not None:
            y = ops.maximum(y, self.lower)
        return y if self.upper is None else ops.minimum(y, self.upper)
