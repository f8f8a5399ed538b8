"""`ingot.simulate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingot.transform.shard.mesh import Mesh


def simulate(mesh: Mapping[str, int]) -> Mesh:
    """A mesh whose devices are all simulated in this process: the reference for programs over several devices.

        m = ingot.compile(net, (x,), mesh=ingot.simulate({"tp": 2}), shard={"*.q_proj.weight": ("tp", 0)})
        y = m(x)

    The model takes whole inputs and returns whole results; it is interpreted, which is slow but exact.

    Raises InputError unless it is a mapping from names of axes to sizes.
    """
    from ingot.transform.shard.run import simulated_mesh  # as in `compile`

    return simulated_mesh(mesh)
