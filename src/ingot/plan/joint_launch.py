"""Groups that share a launch: they are independent, and the target can join their kernels into one.

q = rotate(y); keys = update(old, rotate(y)); o = attention(q, keys)   ->   one launch for q and keys, then attention
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from ingot.ir.dims import DimLike, dim_max, dim_min, estimate, product
from ingot.ir.node import Node
from ingot.ops.core.base import violable_constraints
from ingot.ops.group import Group
from ingot.schedule.lowered import Arg, Lowered
from ingot.support.dataclass import dataclass

MAX_FOLLOWING = 16  # groups among which the next launch looks for others
MAX_EARLY_BYTES = 1 << 20  # of the results of a group that is launched before others, as they live longer

# the lowering of several groups as one launch, None if the target cannot join them
Join = Callable[[Sequence[Lowered]], Lowered | None]


@dataclass(frozen=True)
class PendingGroup:
    """A lowered group that is not launched yet, so that other groups can join it. key: of its lowering. reads, writes:
    numbers of buffers."""

    node: Node
    key: object
    lowered: Lowered
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()

    def conflicts_with(self, other: PendingGroup) -> bool:
        """Whether the order of the two groups matters."""
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)


@dataclass
class PendingGroups:
    """The groups of the next launch. launches: joint launches by the keys of their groups, as equal layers share
    kernels."""

    join: Join | None
    groups: list[PendingGroup] = field(default_factory=list)
    launches: dict[object, Lowered | None] = field(default_factory=dict)

    def can_add(self, new: PendingGroup) -> bool:
        """Whether a group can be launched together with the pending ones."""
        if not self.groups:
            return True
        return not any(map(new.conflicts_with, self.groups)) and self.join_groups([*self.groups, new]) is not None

    def can_join(self) -> bool:
        """Whether the pending groups could be launched with others."""
        return bool(self.groups) and self._joined(self.groups) is not None

    def add_early(self, following: Sequence[PendingGroup]) -> list[Node]:
        """Add those of the groups that come next which can be launched before the others, and return their nodes."""
        early, later = list[Node](), list[PendingGroup]()
        for group in following:
            is_short = estimate(sum(t.nbytes for t in group.node.types)) <= MAX_EARLY_BYTES
            is_free = is_short and self._joined([group]) is not None and not any(map(group.conflicts_with, later))
            if is_free and self.can_add(group):
                self.groups.append(group)
                early.append(group.node)
            else:
                later.append(group)
        return early

    def join_groups(self, groups: Sequence[PendingGroup]) -> Lowered | None:
        """One launch of several groups, whose operands are concatenated; None if they cannot be joined."""
        return groups[0].lowered if len(groups) == 1 else self._joined(groups)

    def _joined(self, groups: Sequence[PendingGroup]) -> Lowered | None:
        """The target's launch of one or several groups; None if it cannot join them, or one with others."""
        if self.join is None:
            return None
        key = tuple(id(g.lowered) for g in groups)  # which are kept with the kernels of all groups
        if key not in self.launches:
            parts: list[Lowered] = []
            ins = outs = 0
            for g in groups:
                in_args = [Arg("in", ins + i) for i in range(len(g.node.inputs))]
                parts.append(g.lowered.inlined(in_args, [Arg("out", outs + i) for i in range(len(g.node.results))], 0))
                ins, outs = ins + len(g.node.inputs), outs + len(g.node.results)
            self.launches[key] = self.join(parts)
        return self.launches[key]


def operands_exist(groups: Sequence[PendingGroup]) -> DimLike:
    """1 for sizes for which all operands of the groups exist, else 0. The sizes of a loop's body are checked only at
    its end, so its groups must not run before with sizes that do not exist."""
    nodes = [n for g in groups if isinstance(g.node.op, Group) for n in g.node.op.body.nodes()]
    return product(dim_min(dim_max(room + 1, 0), 1) for n in nodes for room in violable_constraints(n))


__all__ = ["Join", "PendingGroup", "PendingGroups", "operands_exist"]
