"""Groups that share a launch: none needs another's results, and the target makes one kernel of theirs.

q = turned(y); keys = updated(old, turned(y)); o = attention(q, keys)   ->   one launch for q and keys, then attention
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from ingot.ir.dims import DimLike, dim_max, dim_min, product
from ingot.ir.node import Node
from ingot.ops.core.base import unsettled
from ingot.ops.group import Group
from ingot.schedule.lowered import Arg, Lowered
from ingot.support.dataclass import dataclass

Join = Callable[[Sequence[Lowered]], Lowered | None]


@dataclass(frozen=True)
class Waiting:
    """A lowered group that others may yet be launched beside. key: what it was lowered from. reads, writes: buffers."""

    node: Node
    key: object
    low: Lowered
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()

    def needs(self, other: Waiting) -> bool:
        """Whether one of the two has to come before the other."""
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)


@dataclass
class Beside:
    """The groups that wait, and launches that were made of several, by their keys: equal layers share kernels."""

    join: Join | None
    waiting: list[Waiting] = field(default_factory=list)
    joined: dict[object, Lowered | None] = field(default_factory=dict)

    def takes(self, new: Waiting) -> bool:
        """Whether a group may be launched with those that wait."""
        if not self.waiting:
            return True
        return not any(map(new.needs, self.waiting)) and self.together([*self.waiting, new]) is not None

    def together(self, groups: Sequence[Waiting]) -> Lowered | None:
        """The one launch of several groups, on the operands of all, one group's behind the other's; None: there is
        none."""
        key = tuple(g.key for g in groups)
        if len(groups) == 1 or self.join is None:
            return groups[0].low if len(groups) == 1 else None
        if key not in self.joined:
            lows: list[Lowered] = []
            ins = outs = 0
            for g in groups:
                own = [Arg("in", ins + i) for i in range(len(g.node.inputs))]
                lows.append(g.low.within(own, [Arg("out", outs + i) for i in range(len(g.node.results))], 0))
                ins, outs = ins + len(g.node.inputs), outs + len(g.node.results)
            self.joined[key] = self.join(lows)
        return self.joined[key]


__all__ = ["Beside", "Join", "Waiting"]


def sizes_suffice(groups: Sequence[Waiting]) -> DimLike:
    """1 for sizes for which all that the groups read is there, else 0: in a body nothing else keeps them from running
    before the run finds at its end that something was not there."""
    nodes = [n for g in groups if isinstance(g.node.op, Group) for n in g.node.op.body.nodes()]
    return product(dim_min(dim_max(room + 1, 0), 1) for n in nodes for room in unsettled(n))
