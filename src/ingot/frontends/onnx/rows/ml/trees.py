"""Decision trees of ai.onnx.ml, as lookups in tables that all trees share.

A record is four words: a feature, a threshold, the offset of the first of two adjacent children, and a leaf's value.
All trees are descended one level at a time for all rows, as a chain of gathers and comparisons that fuses; a leaf is
its own first child:

    at = table[at + 2] + 4 * (x[table[at]] > table[at + 1])      [rows, trees]

NaN goes to the first child. Where it should go where greater numbers go, the test is on -x with the children exchanged:
x <= s where -x > the float before -s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce as fold_left

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.rows.common import check_table
from ingot.frontends.onnx.rows.ml.forest import EQ, LEAF, LT, MEMBER, MODES, Forest
from ingot.frontends.onnx.rows.ml.ml import ML, both_scores, label_of, labels, matrix, top_label, transformed
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType
from ingot.support.dataclass import dataclass

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
# levels per kernel; a deeper descent is a loop
_STEPS = 12
_NODE_WORDS = 4


def _depth_ranges(depths: np.ndarray, start: int, end: int) -> list[tuple[int, int]]:
    """Ranges of the descending depths, split in two where that saves an eighth of the steps and at least 64."""
    part = depths[start:end]
    saved = np.arange(len(part), 0, -1) * (part[0] - part)
    cut = int(saved.argmax())
    if saved[cut] < max(64, len(part) * part[0] / 8):
        return [(start, end)]
    return _depth_ranges(depths, start, start + cut) + _depth_ranges(depths, start + cut, end)


@dataclass(frozen=True, slots=True)
class _Table:
    """Records of the roots and of each inner node's two children. x: [rows, features], followed by -x if needed."""

    x: Node
    words: Node
    roots: np.ndarray

    @staticmethod
    def of(x: Node, forest: Forest, node_values: np.ndarray) -> _Table:
        """For a forest `in_order`. node_values: [nodes], of x's dtype or integers."""
        leaf, roots, features = forest.leaf, forest.roots.reshape(-1), x.shape[1]
        used = forest.feature[~leaf]
        if not isinstance(features, int) or not 0 <= used.min(initial=0) <= used.max(initial=-1) + 1 <= features:
            raise Unsupported(f"features {used.min(initial=0)} to {used.max(initial=-1)} of {features}")
        is_flipped = ~forest.nan & ~leaf
        with np.errstate(over="ignore"):
            negated_split = np.nextafter(-forest.split, forest.split.dtype.type(-np.inf))
        feature, split = forest.feature, np.where(leaf, np.inf, np.where(is_flipped, negated_split, forest.split))
        if is_flipped.any():
            x, feature = ops.concat([x, ops.Neg()(x)], 1), feature + is_flipped * features
        first, second = np.where(is_flipped, forest.no, forest.yes), np.where(is_flipped, forest.yes, forest.no)
        nodes = np.concatenate([roots, np.stack([first, second], 1)[~leaf].reshape(-1)])
        check_table(len(nodes), _NODE_WORDS)
        pair = len(roots) + 2 * (np.cumsum(~leaf) - 1)
        word = np.dtype(f"u{x.dtype.nbytes}")
        table = np.empty((len(nodes), _NODE_WORDS), word)
        table[:, 0] = np.where(leaf, 0, feature)[nodes]
        table[:, 1] = split[nodes].astype(x.dtype.numpy).view(word)
        table[:, 2] = _NODE_WORDS * np.where(leaf[nodes], np.arange(len(nodes)), pair[nodes])
        table[:, 3] = node_values[nodes].view(word) if node_values.dtype == x.dtype.numpy else node_values[nodes]
        return _Table(x, const(table.reshape(-1)), (_NODE_WORDS * np.arange(len(roots))).astype(word))

    def word(self, offsets: Node, i: int) -> Node:
        return ops.Take(0)(self.words, ops.add(offsets, i) if i else offsets)

    def number(self, offsets: Node, i: int) -> Node:
        return ops.BitcastConvert(self.x.dtype)(self.word(offsets, i))

    def steps(self, x: Node, offsets: Node, count: int) -> Node:
        """The offsets `count` levels below the offsets `at`: [rows, trees], or [trees] where all rows have the same."""
        for _ in range(count):
            feature = self.word(offsets, 0)
            value = ops.Take(1)(x, feature) if len(offsets.shape) == 1 else ops.GatherElements(1)(x, feature)
            second = ops.compare("GT", value, self.number(offsets, 1))
            offsets = ops.add(
                self.word(offsets, 2),
                ops.where(second, ops.scalar(_NODE_WORDS, offsets.dtype), ops.scalar(0, offsets.dtype)),
            )
        return offsets

    def ends(self, depth: int, stored: bool) -> Node:
        """Offsets [rows, trees], `depth` levels below the roots. stored: by a loop, whose result is not recomputed by
        its readers."""
        shape = (self.x.shape[0], len(self.roots))
        if depth <= _STEPS and not stored:
            return ops.broadcast_to(self.steps(self.x, const(self.roots), depth), shape)
        rounds = max(-(-depth // _STEPS), 1)
        offsets = ops.broadcast_to(const(self.roots), shape)
        i, x, offsets_in_loop = (
            Input(*spec)() for spec in (("i", TensorType(T.i64)), ("x", self.x.type), ("at", offsets.type))
        )
        cond = Graph((i, x, offsets_in_loop), (ops.compare("LT", i, rounds),))
        body = Graph((i, x, offsets_in_loop), (ops.add(i, 1), x, self.steps(x, offsets_in_loop, -(-depth // rounds))))
        return ops.While(cond, body)(const(0, np.int64), self.x, offsets).results[2]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of leaves: `value[i]` for `target[i]` at the node `leaf[i]`."""

    leaf: np.ndarray
    target: np.ndarray
    value: np.ndarray
    targets: int

    def table(self, count: int, dtype: DType, aggregate: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(the row of each of `count` nodes, values [rows, targets], a mask of present ones). The last row is empty."""
        if self.target.min(initial=0) < 0 or self.target.max(initial=0) >= self.targets:
            raise Unsupported(f"a weight of target {self.target.max()} of {self.targets}")
        leaves, row = np.unique(self.leaf, return_inverse=True)
        check_table(len(leaves) + 1, self.targets)
        fold, empty = {"MIN": (np.minimum, np.inf), "MAX": (np.maximum, -np.inf)}.get(aggregate, (np.add, 0.0))
        values = np.full((len(leaves) + 1, self.targets), empty, dtype.numpy)
        is_given = np.zeros(values.shape, bool)
        fold.at(values, (row, self.target), self.value)
        is_given[row, self.target] = True
        row_of = np.full(count, len(leaves))
        row_of[leaves] = np.arange(len(leaves))
        return row_of, values, is_given


def scores(
    x: Node, forest: Forest, weights: Weights, aggregate: str = "SUM", tree: np.ndarray | None = None
) -> tuple[Node, Node | None]:
    """([rows, targets] of x's dtype: the aggregated leaf values, 0 where there are none; bool[rows, targets]: where
    there are any, None: everywhere). tree: each node's tree, -1 where it is unreachable."""
    ordered = forest.in_order()
    row_of, values, is_given = weights.table(len(ordered.mode), x.dtype, aggregate)
    targets_of_leaves = None
    if tree is not None and aggregate not in ("MIN", "MAX"):
        targets_of_leaves = _own_targets(forest, is_given[row_of[: len(tree)]], tree)
    if targets_of_leaves is not None:
        return _over_trees(x, ordered, _by_target(ordered, targets_of_leaves), values.sum(1)[row_of], "SUM"), None
    roots = ordered.roots.reshape(1, -1)
    fold = aggregate if aggregate in ("MIN", "MAX") else "SUM"
    if weights.targets == 1:
        y = _over_trees(x, ordered, roots, values[row_of, 0], fold)
    else:
        y = _over_trees(x, ordered, roots, row_of, fold, values)
    if is_given[row_of[np.flatnonzero(forest.leaf)]].all():
        return y, None
    has_leaf = ops.compare("GT", _over_trees(x, ordered, roots, row_of, "MAX", is_given.astype(np.int32)), 0)
    return ops.where(has_leaf, y, ops.scalar(0, y.dtype)), has_leaf


_FOLDS: dict[str, tuple[Callable[[Node, int], Node], Callable[[Node, Node], Node]]] = {
    "SUM": (ops.reduce_sum, lambda a, b: ops.add(a, b)),
    "MIN": (ops.reduce_min, lambda a, b: ops.minimum(a, b)),
    "MAX": (ops.reduce_max, lambda a, b: ops.maximum(a, b)),
}


def _over_trees(
    x: Node, forest: Forest, roots: np.ndarray, node_values: np.ndarray, fold: str, rows: np.ndarray | None = None,
) -> Node:  # fmt: skip
    """[rows, targets]: the leaf values folded over the trees with `roots` [targets, trees]; where leaves hold indices
    of rows of a table [.., targets], `roots` is [1, trees]. Trees are descended in groups of about equal depth."""
    depths = replace(forest, roots=roots.reshape(-1)).depths().reshape(roots.shape)
    order = np.argsort(-depths, 1, kind="stable")
    roots, depths = np.take_along_axis(roots, order, 1), np.take_along_axis(depths, order, 1).max(0)
    reduced, combine = _FOLDS[fold]
    parts: list[Node] = []
    for start, end in _depth_ranges(depths, 0, len(depths)):
        part = roots[:, start:end]
        table = _Table.of(x, replace(forest, roots=part), node_values)
        # else each target would repeat the descent
        leaf_offsets = table.ends(int(depths[start]), stored=rows is not None)
        if rows is None:
            values = ops.reshape(table.number(leaf_offsets, 3), (x.shape[0], *part.shape))
            parts.append(reduced(values, 2))
        else:
            parts.append(reduced(ops.Take(0)(const(rows), table.word(leaf_offsets, 3)), 1))
    return fold_left(combine, parts)


def _own_targets(forest: Forest, is_given: np.ndarray, tree: np.ndarray) -> np.ndarray | None:
    """Each tree's target, where all leaves of a tree have a weight for one target only, and targets have about the same
    number of trees; else None."""
    leaves, (trees, targets) = np.flatnonzero(forest.leaf & (tree >= 0)), (len(forest.roots), is_given.shape[1])
    if targets == 1 or (is_given[leaves].sum(1) != 1).any():
        return None
    first_target, last_target = np.full(trees, targets), np.full(trees, -1)
    np.minimum.at(first_target, tree[leaves], is_given[leaves].argmax(1))
    np.maximum.at(last_target, tree[leaves], is_given[leaves].argmax(1))
    counts = np.bincount(first_target, minlength=targets)
    even = (first_target == last_target).all() and counts.min() > 0 and counts.max() * targets <= 2 * trees
    return first_target if even else None


def _by_target(forest: Forest, targets: np.ndarray) -> np.ndarray:
    """[targets, trees]: the roots of each target's trees, padded with the empty leaf."""
    counts = np.bincount(targets)
    roots = np.full((len(counts), counts.max()), len(forest.mode) - 1)
    for target, count in enumerate(counts):
        roots[target, :count] = forest.roots[targets == target]
    return roots


# how the three ops write a forest


def _numbers(c: Call, name: str, dtype: DType) -> np.ndarray:
    """An attribute of floats, or the tensor attribute `name`_as_tensor; empty where there is neither."""
    values = c.attr(f"{name}_as_tensor")
    return np.asarray(c.float_list(name) or () if values is None else values, dtype.numpy).reshape(-1)


def _integers(c: Call, name: str) -> np.ndarray:
    return np.asarray(c.int_list(name, ()), np.int64)


def _no_nan(forest: Forest) -> Forest:
    if np.isnan(forest.split[~forest.leaf]).any():
        raise Unsupported("a split at NaN")
    return forest


def _numbered(trees: np.ndarray, nodes: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """A function from (tree, number) to the node's index in these arrays. It raises LookupError for unknown nodes."""
    tree_names, node_names = np.unique(trees), np.unique(nodes)

    def key(t: np.ndarray, n: np.ndarray) -> np.ndarray:
        return np.searchsorted(tree_names, t) * len(node_names) + np.searchsorted(node_names, n)

    keys = key(trees, nodes)
    order = np.argsort(keys)
    if (np.diff(keys[order]) == 0).any():
        raise ValueError("two nodes of one number in a tree")

    def find(t: np.ndarray, n: np.ndarray) -> np.ndarray:
        indices = order[np.minimum(np.searchsorted(keys[order], key(t, n)), len(order) - 1)]
        if (trees[indices] != t).any() or (nodes[indices] != n).any():
            raise LookupError("a node that its tree does not have")
        return indices

    return find


def _by_number(c: Call, dtype: DType, kind: str, targets: int) -> tuple[Forest, Weights, np.ndarray]:
    """(nodes, weights, each node's tree) of the ops that name nodes by tree and number. kind: what has weights."""
    names = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    trees, numbers, feature, yes, no = (_integers(c, f"nodes_{name}") for name in names)
    modes = c.attr("nodes_modes")
    mode = np.asarray([MODES[str(m)] for m in modes] if isinstance(modes, tuple) else (), np.int64)
    split = _numbers(c, "nodes_values", dtype)
    nan = _integers(c, "nodes_missing_value_tracks_true").astype(bool)
    nan = nan if nan.size else np.zeros(len(mode), bool)
    lengths = {len(a) for a in (trees, numbers, feature, yes, no, mode, split, nan)}
    if len(lengths) != 1 or not len(mode):
        raise ValueError(f"nodes_* of lengths {sorted(lengths)}")
    find = _numbered(trees, numbers)
    inner, leaf_numbers = mode != LEAF, np.arange(len(mode))
    children = (leaf_numbers.copy(), leaf_numbers.copy())
    for side, node_numbers in zip(children, (yes, no), strict=True):
        side[inner] = find(trees[inner], node_numbers[inner])
    _, roots, tree = np.unique(trees, return_index=True, return_inverse=True)
    forest = _no_nan(Forest(roots, np.where(inner, feature, 0), split, mode, children[0], children[1], nan & inner))
    leaf = find(_integers(c, f"{kind}_treeids"), _integers(c, f"{kind}_nodeids"))
    target, value = _integers(c, f"{kind}_ids"), _numbers(c, f"{kind}_weights", dtype)
    # old converters give inner nodes weights that nothing reads
    is_leaf = ~inner[leaf]
    return forest, Weights(leaf[is_leaf], target[is_leaf], value[is_leaf], targets), tree


def _finished(y: Node, base: np.ndarray, aggregate: str, trees: int, transform: str) -> Node:
    if aggregate == "AVERAGE":
        y = ops.div(y, trees)
    if base.size:
        y = ops.add(y, const(base))
    if transform != "NONE" and y.shape[1] == 1:
        raise Unsupported(f"post_transform {transform} of one target, which ONNX Runtime leaves out")
    return transformed(y, transform)


@onnx_op("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(c: Call) -> Result:
    x = matrix(c.x(), T.f64 if c.type().dtype == T.f64 else T.f32)
    targets, aggregate = c.int("n_targets"), c.str("aggregate_function", "SUM")
    base = _numbers(c, "base_values", x.dtype)
    if aggregate not in _AGGREGATES or base.size not in (0, targets):
        raise Unsupported(f"{base.size} base values of {targets} targets, aggregate {aggregate!r}")
    forest, weights, tree = _by_number(c, x.dtype, "target", targets)
    y, _ = scores(x, forest, weights, aggregate, tree)
    y = _finished(y, base, aggregate, len(forest.roots), c.str("post_transform", "NONE"))
    return ops.cast(y, T.f32)


def _tensor(c: Call, name: str, dtype: DType) -> np.ndarray:
    value = c.attr(name)
    return np.asarray(value if isinstance(value, np.ndarray) else (), dtype.numpy).reshape(-1)


@onnx_op("TreeEnsemble", since=5, domain=ML)
def tree_ensemble(c: Call) -> Result:
    """TreeEnsemble: indices count inner nodes first, then leaves."""
    dtype = c.type().dtype
    x = matrix(c.x(), T.f64 if dtype == T.f64 else T.f32)
    aggregate, transform = _AGGREGATES[c.int("aggregate_function", 1)], _TRANSFORMS[c.int("post_transform", 0)]
    feature, target = _integers(c, "nodes_featureids"), _integers(c, "leaf_targetids")
    inner, fill = len(feature), np.zeros(len(target), np.int64)
    leaves = np.arange(inner, inner + len(target))
    yes, no = (_integers(c, f"nodes_{s}nodeids") + inner * _integers(c, f"nodes_{s}leafs") for s in ("true", "false"))
    nan = _integers(c, "nodes_missing_value_tracks_true")
    forest = Forest(
        roots=_integers(c, "tree_roots"),
        feature=np.append(feature, fill),
        split=np.append(_tensor(c, "nodes_splits", x.dtype), fill).astype(x.dtype.numpy),
        mode=np.append(_tensor(c, "nodes_modes", T.u8).astype(np.int64), fill + LEAF),
        yes=np.append(yes, leaves),
        no=np.append(no, leaves),
        nan=np.append(nan if nan.size else np.zeros(inner, np.int64), fill).astype(bool),
    )
    if any(len(getattr(forest, name)) != len(leaves) + inner for name in ("split", "mode", "yes", "no", "nan")):
        raise ValueError("nodes_* of different lengths")
    places = np.concatenate([forest.roots, forest.yes, forest.no])
    if not forest.roots.size or places.min() < 0 or places.max() >= len(forest.mode):
        raise LookupError("a node that there is not")
    forest = _no_nan(_single_members(forest, _tensor(c, "membership_values", x.dtype)))
    weights = Weights(leaves, target, _tensor(c, "leaf_weights", x.dtype), c.int("n_targets"))
    y, _ = scores(x, forest, weights, aggregate, forest.trees())
    return ops.cast(_finished(y, np.zeros(0), aggregate, len(forest.roots), transform), dtype)


def _single_members(forest: Forest, members: np.ndarray) -> Forest:
    """Tests for membership as chains of tests for one member. members: sets in the nodes' order, each ended by NaN."""
    sets = np.split(members, np.flatnonzero(np.isnan(members)) + 1)
    names = ("feature", "split", "mode", "yes", "no", "nan")
    fields = {name: list(getattr(forest, name)) for name in names}
    member_nodes = np.flatnonzero(forest.mode == MEMBER)
    if len(member_nodes) > len(sets):
        raise ValueError("fewer sets of members than nodes that ask for them")
    for node, members_of_node in zip(member_nodes.tolist(), sets, strict=False):
        values, mode, last = members_of_node[~np.isnan(members_of_node)], EQ, fields["no"][node]
        if not values.size:
            # an empty set: nothing is less than -inf
            values, mode = np.full(1, -np.inf), LT
        test = node
        for i, v in enumerate(values):
            fields["mode"][test], fields["split"][test] = mode, v
            if i + 1 < len(values):
                for name in names:
                    fields[name].append(fields[name][test])
                fields["no"][test] = len(fields["mode"]) - 1
                test = len(fields["mode"]) - 1
        fields["no"][test] = last
    return Forest(forest.roots, **{k: np.asarray(v, getattr(forest, k).dtype) for k, v in fields.items()})


@onnx_op("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(c: Call) -> Result:
    """(labels [rows], scores f32[rows, classes])."""
    x = matrix(c.x(), T.f64 if c.type().dtype == T.f64 else T.f32)
    names, transform = labels(c, "classlabels_int64s"), c.str("post_transform", "NONE")
    forest, weights, tree = _by_number(c, x.dtype, "class", len(names))
    base = _numbers(c, "base_values", x.dtype)
    if len(names) == 2 and len(np.unique(weights.target)) == 1:
        return _binary(x, forest, weights, base, names, transform)
    if len(names) < 2 or base.size not in (0, len(names)):
        raise Unsupported(f"{base.size} base values of {len(names)} classes")
    y, has_leaf = scores(x, forest, weights, "SUM", tree)
    if base.size:
        y, has_leaf = ops.add(y, const(base)), None
    compared = y if has_leaf is None else ops.where(has_leaf, y, ops.scalar(-np.inf, y.dtype))
    return [top_label(compared, names), ops.cast(transformed(y, transform), T.f32)]


def _binary(x: Node, forest: Forest, weights: Weights, base: np.ndarray, names: np.ndarray, transform: str) -> Result:
    """Two classes with weights for one: a probability of the second class if no weight is negative, else its margin."""
    first = int(weights.target[0]) == 0
    if base.size > first:
        raise Unsupported(f"{base.size} base values of two classes with weights for one")
    y, _ = scores(x, forest, replace(weights, target=np.zeros_like(weights.target), targets=1))
    if base.size:
        y = ops.add(y, const(base))
    probable = bool((weights.value >= 0).all())
    label = label_of(ops.compare("GT", ops.reshape(y, (-1,)), 0.5 if probable else 0.0), names)
    if first:
        class_scores = both_scores(y, transform, probable)
    else:
        class_scores = transformed(ops.concat([ops.full(y.shape, 0.0, y.dtype), y], 1), transform)
    return [label, ops.cast(class_scores, T.f32)]
