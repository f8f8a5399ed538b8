"""`ingot.attack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.runtime.cpu.pool import thread_count
from ingot.support.garbage import no_collection

if TYPE_CHECKING:
    from ingot.transform.bounds.search.attack import Adversarial


def attack(
    model: Any,
    x: Any,
    *,
    label: int | None = None,
    spec: Any = None,
    eps: Any = None,
    lower: Any = None,
    upper: Any = None,
    steps: int = 50,
    points: int = 32,
    seed: int = 0,
    dynamic: Any = None,
    target: str = "native",
    threads: int | None = None,
) -> Adversarial:
    """Search a box of inputs for one that the model gets wrong, by projected gradient descent (Madry et al., 2018).

        found = ingot.attack(net, x, label=3, eps=8 / 255)
        found.success, found.x, found.y

    Args:
        model, dynamic, target, threads: as for `compile`; a model of one input and one result of floats.
        x, eps, lower, upper: the box, as for `bounds`.
        label: the right class of a result [classes] or [1, classes]: the attack wants another one to be as large.
        spec: instead, [rows, elements] factors of the result's elements, as for `bounds`: the attack wants one of their
            sums to be at most 0.
        steps, points: how often, and how many points at once. The first starts in the middle of the box, the others
            anywhere in it.
        seed: of the starting points.

    Returns: `Adversarial`: success; x, the worst input that was met; y, the model's result for it; margin, the least
    sum, at most 0 for a success.

    Raises InputError for a box or a label that does not fit, UnsupportedOpError naming every op without a gradient.
    """
    with no_collection():
        from ingot.driver.compile import Options  # as in `compile`
        from ingot.transform.bounds.search.attack import attack_model

        return attack_model(
            model, x, label=label, spec=spec, eps=eps, lower=lower, upper=upper, steps=steps, points=points, seed=seed,
            dynamic=dynamic, options=Options(target, thread_count(threads)),
        )  # fmt: skip
