"""The in-place ops of an exported graph that are plain rebindings.

    y = relu_(x)   ->   y = x = relu(x)

torch.export keeps in-place ops and views. Where no alias of the storage is read after the write, it suffices to rebind
the written name, without the costly functionalization by `run_decompositions`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

# ops that may return their input itself, although their schemas do not say so
_MAY_RETURN_INPUT = frozenset(
    {
        "type_as",
        "dropout",
        "feature_dropout",
        "alpha_dropout",
        "feature_alpha_dropout",
        "meshgrid",
        "broadcast_tensors",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
    }
)


def written_argument(node: fx.Node) -> fx.Node | None:
    """The argument that an in-place op (`add_`, `copy_`) writes; None for any other call."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    first = node.args[0] if node.args else None
    info = target._schema.arguments[0].alias_info if target._schema.arguments else None
    return first if isinstance(first, fx.Node) and info is not None and info.is_write else None


def destination(node: fx.Node) -> fx.Node:
    """The value to which a chain of in-place ops writes; `node` itself if it is no such op."""
    while (target := written_argument(node)) is not None:
        node = target
    return node


def functional_name(target: torch._ops.OpOverload) -> str:
    """The functional form of an in-place op: aten.add_.Tensor -> aten.add.Tensor; other ops keep their names."""
    namespace, base, overload = *target._schema.name.split("::"), target._overloadname
    if target._schema.is_mutable:
        if base.startswith("__i") and base.endswith("__"):
            base = f"__{base[3:]}"
        elif base.endswith("_"):
            base = base[:-1]
    return f"{namespace}.{base}.{overload}"


class _Aliases:
    """Sets of nodes that may share storage (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}

    def find(self, node: fx.Node) -> fx.Node:
        root = node
        while (parent := self._parent.get(root, root)) is not root:
            root = parent
        while node is not root:
            following = self._parent.get(node, node)
            self._parent[node] = root
            node = following
        return root

    def join(self, a: fx.Node, b: fx.Node) -> None:
        self._parent[self.find(a)] = self.find(b)


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments whose storage `node` may share."""
    target = node.target
    if target is operator.getitem and _gives_fresh(node.args[0]):
        return
    if not isinstance(target, torch._ops.OpOverload):
        # getitem, and calls of submodules: the result may alias any argument
        yield from node.all_input_nodes
        return
    schema = target._schema
    if _name(target) in _MAY_RETURN_INPUT:
        first = node.args[0]
        yield from (a for a in (first if isinstance(first, list | tuple) else [first]) if isinstance(a, fx.Node))
        return
    if all(r.alias_info is None for r in schema.returns):
        return
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is not None and isinstance(value, fx.Node):
            yield value


def _gives_fresh(node: Any) -> bool:
    """Whether each of a call's results has fresh memory."""
    target = node.target
    fresh = isinstance(target, torch._ops.OpOverload) and all(r.alias_info is None for r in target._schema.returns)
    return fresh and _name(target) not in _MAY_RETURN_INPUT


def _name(target: torch._ops.OpOverload) -> str:
    return target._schema.name.split("::")[-1]


def needs_functionalization(graph: fx.Graph) -> bool:
    """Whether some write of `graph` is seen through an alias, or changes an input."""
    nodes = list(graph.nodes)
    writes = [n for n in nodes if n.op == "call_function" and _writes(n)]
    if not writes:
        return False
    names = Names(nodes)
    return any(
        (target := written_argument(n)) is None or names.holds_input(target) or names.is_seen(n, target) for n in writes
    )


class Names:
    """Alias sets of a graph's nodes."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self._position = {n: i for i, n in enumerate(nodes)}
        self._aliases = _aliases(nodes)
        self._members: dict[fx.Node, list[fx.Node]] = {}
        for n in nodes:
            self._members.setdefault(self._aliases.find(n), []).append(n)

    def holds_input(self, node: fx.Node) -> bool:
        return any(n.op in ("placeholder", "get_attr") for n in self._members[self._aliases.find(node)])

    def is_seen(self, write: fx.Node, target: fx.Node) -> bool:
        """Whether the effect of `write` on `target` is read later through an alias that existed before."""
        write_position, position = self._position[write], self._position
        same_storage = self._members[self._aliases.find(target)]
        return any(
            position[user] > write_position
            for n in same_storage
            if n is not target and position[n] < write_position
            for user in n.users
        )


def _aliases(nodes: Sequence[fx.Node]) -> _Aliases:
    aliases = _Aliases()
    for n in nodes:
        if n.op == "call_function":
            for source in _sources(n):
                aliases.join(n, source)
    return aliases


def written_inputs(graph: fx.Graph) -> frozenset[str]:
    """Names of the placeholders whose storage some op of `graph` may write."""
    nodes = list(graph.nodes)
    targets = [t for n in nodes if n.op == "call_function" and _writes(n) and (t := written_argument(n)) is not None]
    if not targets:
        return frozenset()
    aliases = _aliases(nodes)
    roots = {aliases.find(t) for t in targets}
    return frozenset(n.name for n in nodes if n.op == "placeholder" and aliases.find(n) in roots)


def _writes(node: fx.Node) -> bool:
    target = node.target
    # detach_ is marked as a write and changes no element
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and target._opname != "detach_"
