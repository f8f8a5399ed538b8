"""A forest of decision trees as arrays of its nodes, with its comparisons normalized to one form."""

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
    """Arrays of [nodes], and each tree's root. An inner node goes on to its child `yes` where `x[feature] mode split`
    holds, or where x is NaN and `nan` is set, else to `no`."""

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
        """Every comparison as `x <= split`, whose `split` is infinite only where NaN goes to `yes`. New nodes are
        appended, the last of them an empty leaf.

        x < s is x <= the float before s; x == s takes two nodes, x <= s and not x < s; the others are complements.
        """
        f = _Fields(self)
        # NaN is different from every number
        f.nan[f.mode == NEQ] = True
        for mode, complement in ((NEQ, EQ), (GTE, LT), (GT, LEQ)):
            f.exchange(f.mode == mode)
            f.mode[f.mode == mode] = complement
        equal = np.flatnonzero(f.mode == EQ)
        second = f.append(equal, mode=LT, yes=f.no[equal], no=f.yes[equal], nan=False)
        f.mode[equal], f.yes[equal] = LEQ, second
        is_less = f.mode == LT
        never = is_less & np.isneginf(f.split)
        f.split[is_less], f.mode[is_less] = np.nextafter(f.split[is_less], f.split.dtype.type(-np.inf)), LEQ
        # nothing is less than the least number, everything is at most the greatest
        f.split[never] = np.inf
        f.exchange(never)
        # "x is no NaN" as two tests: x > 0, or x <= 0
        number_tests = np.flatnonzero((f.mode == LEQ) & np.isposinf(f.split) & ~f.nan)
        second = f.append(number_tests, split=0)
        f.yes[number_tests], f.no[number_tests], f.split[number_tests], f.nan[number_tests] = (
            second,
            f.yes[number_tests],
            0,
            True,
        )
        f.append(np.zeros(1, np.int64), mode=LEAF)
        return Forest(f.roots, f.feature, f.split, f.mode, f.yes, f.no, f.nan)

    def depths(self) -> np.ndarray:
        """[trees]: steps on the longest path from each root to a leaf. Raises Unsupported where a path has a cycle."""
        inner, count = ~self.leaf, len(self.mode)
        tree, level = np.arange(len(self.roots)), self.roots
        depths, visits = np.zeros(len(self.roots), np.int64), 0
        for depth in range(_MAX_DEPTH):
            is_inner = inner[level]
            if not is_inner.any():
                return depths
            visits += len(level)
            if visits > max(64 * count, _MAX_VISITS):
                break
            tree, level = tree[is_inner], level[is_inner]
            depths[tree] = depth + 1
            # paths that meet are continued once
            children = np.sort(np.concatenate([tree * count + self.yes[level], tree * count + self.no[level]]))
            tree, level = np.divmod(children[np.diff(children, prepend=-1) != 0], count)
        raise Unsupported(f"trees of more than {_MAX_DEPTH} levels, without end, or that meet too often")

    def trees(self) -> np.ndarray | None:
        """[nodes]: each node's tree, -1 where none reaches it. None where trees share nodes."""
        roots = np.full(len(self.mode), -1)
        nodes, tree_ids = self.roots, np.arange(len(self.roots))
        for _ in range(_MAX_DEPTH):
            is_new = roots[nodes] < 0
            if (roots[nodes[~is_new]] != tree_ids[~is_new]).any():
                return None
            nodes, tree_ids = nodes[is_new], tree_ids[is_new]
            roots[nodes] = tree_ids
            if (roots[nodes] != tree_ids).any():
                return None
            inner = ~self.leaf[nodes]
            nodes, tree_ids = nodes[inner], tree_ids[inner]
            if not nodes.size:
                return roots
            nodes, tree_ids = np.concatenate([self.yes[nodes], self.no[nodes]]), np.tile(tree_ids, 2)
        return None


class _Fields:
    """A mutable copy of a forest's arrays."""

    def __init__(self, forest: Forest) -> None:
        self.roots = forest.roots
        self.feature, self.split, self.mode = forest.feature.copy(), forest.split.copy(), forest.mode.copy()
        self.yes, self.no, self.nan = forest.yes.copy(), forest.no.copy(), forest.nan.copy()

    def exchange(self, nodes: np.ndarray) -> None:
        """Negate the test at nodes `at`, by exchanging their children."""
        self.yes[nodes], self.no[nodes], self.nan[nodes] = self.no[nodes], self.yes[nodes], ~self.nan[nodes]

    def append(self, nodes: np.ndarray, **changed: np.ndarray | float) -> np.ndarray:
        """Append copies of nodes `at` with some fields changed; returns the new indices."""
        new_nodes = len(self.mode) + np.arange(len(nodes))
        for name in ("feature", "split", "mode", "yes", "no", "nan"):
            array = getattr(self, name)
            part = np.full(len(nodes), changed[name]) if name in changed else array[nodes]
            setattr(self, name, np.append(array, part.astype(array.dtype)))
        return new_nodes
