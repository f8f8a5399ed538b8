"""A forest of decision trees as arrays of its nodes, and its comparisons brought to one form."""

from __future__ import annotations

import numpy as np

from ingot.frontends.shared.refusal import Unsupported
from ingot.support.dataclass import dataclass

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(8)
MODES = {
    "BRANCH_LEQ": LEQ, "BRANCH_LT": LT, "BRANCH_GTE": GTE, "BRANCH_GT": GT, "BRANCH_EQ": EQ, "BRANCH_NEQ": NEQ,
    "LEAF": LEAF,
}  # fmt: skip
_MAX_DEPTH = 4096
_MAX_VISITS = 10_000_000


@dataclass(frozen=True, slots=True)
class Forest:
    """Nodes as arrays of [nodes] and each tree's root. From a node that is no leaf the way goes to `yes` where
    `x[feature] mode split` holds, or where x is NaN and `nan` is set, else to `no`."""

    roots: np.ndarray
    feature: np.ndarray
    split: np.ndarray
    mode: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    nan: np.ndarray

    @property
    def leaf(self) -> np.ndarray:
        return self.mode == LEAF

    def in_order(self) -> Forest:
        """Every comparison as `x <= split`, whose `split` is infinite only where NaN goes to `yes`. More nodes follow
        those that there are, the last a leaf of nothing.

        x < s is x <= the number before s, x == s is x <= s and not x < s, two nodes, and the others are opposites.
        """
        f = _Fields(self)
        # NaN is different from every number
        f.nan[f.mode == NEQ] = True
        for this, other in ((NEQ, EQ), (GTE, LT), (GT, LEQ)):
            f.exchange(f.mode == this)
            f.mode[f.mode == this] = other
        equal = np.flatnonzero(f.mode == EQ)
        second = f.more(equal, mode=LT, yes=f.no[equal], no=f.yes[equal], nan=False)
        f.mode[equal], f.yes[equal] = LEQ, second
        is_less = f.mode == LT
        never = is_less & np.isneginf(f.split)
        f.split[is_less], f.mode[is_less] = np.nextafter(f.split[is_less], f.split.dtype.type(-np.inf)), LEQ
        # nothing lies below the least number, everything up to the greatest
        f.split[never] = np.inf
        f.exchange(never)
        # a number at all: above 0, or up to 0
        number = np.flatnonzero((f.mode == LEQ) & np.isposinf(f.split) & ~f.nan)
        second = f.more(number, split=0)
        f.yes[number], f.no[number], f.split[number], f.nan[number] = second, f.yes[number], 0, True
        f.more(np.zeros(1, np.int64), mode=LEAF)
        return Forest(f.roots, f.feature, f.split, f.mode, f.yes, f.no, f.nan)

    def depths(self) -> np.ndarray:
        """[trees]: steps on the longest way from each root to a leaf. Raises Unsupported where a way has no end."""
        inner, count = ~self.leaf, len(self.mode)
        tree, level = np.arange(len(self.roots)), self.roots
        depths, visits = np.zeros(len(self.roots), np.int64), 0
        for depth in range(_MAX_DEPTH):
            on = inner[level]
            if not on.any():
                return depths
            visits += len(level)
            if visits > max(64 * count, _MAX_VISITS):
                break
            tree, level = tree[on], level[on]
            depths[tree] = depth + 1
            # ways that meet go on as one
            children = np.sort(np.concatenate([tree * count + self.yes[level], tree * count + self.no[level]]))
            tree, level = np.divmod(children[np.diff(children, prepend=-1) != 0], count)
        raise Unsupported(f"trees of more than {_MAX_DEPTH} levels, without end, or that meet too often")

    def trees(self) -> np.ndarray | None:
        """[nodes]: each node's tree, -1 where none reaches it. None where trees share nodes."""
        roots = np.full(len(self.mode), -1)
        at, tree_ids = self.roots, np.arange(len(self.roots))
        for _ in range(_MAX_DEPTH):
            fresh = roots[at] < 0
            if (roots[at[~fresh]] != tree_ids[~fresh]).any():
                return None
            at, tree_ids = at[fresh], tree_ids[fresh]
            roots[at] = tree_ids
            if (roots[at] != tree_ids).any():
                return None
            inner = ~self.leaf[at]
            at, tree_ids = at[inner], tree_ids[inner]
            if not at.size:
                return roots
            at, tree_ids = np.concatenate([self.yes[at], self.no[at]]), np.tile(tree_ids, 2)
        return None


class _Fields:
    """A forest's arrays, to be changed."""

    def __init__(self, forest: Forest) -> None:
        self.roots = forest.roots
        self.feature, self.split, self.mode = forest.feature.copy(), forest.split.copy(), forest.mode.copy()
        self.yes, self.no, self.nan = forest.yes.copy(), forest.no.copy(), forest.nan.copy()

    def exchange(self, at: np.ndarray) -> None:
        """The opposite test at nodes."""
        self.yes[at], self.no[at], self.nan[at] = self.no[at], self.yes[at], ~self.nan[at]

    def more(self, at: np.ndarray, **changed: np.ndarray | float) -> np.ndarray:
        """The places of new nodes that are as those `at`, but for what is given."""
        new = len(self.mode) + np.arange(len(at))
        for name in ("feature", "split", "mode", "yes", "no", "nan"):
            array = getattr(self, name)
            part = np.full(len(at), changed[name]) if name in changed else array[at]
            setattr(self, name, np.append(array, part.astype(array.dtype)))
        return new
