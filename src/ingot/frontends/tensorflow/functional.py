"""Control flow of TensorFlow 1 rewritten to functional ops, which the walk imports.

    Enter, Merge, LoopCond, Switch, NextIteration, Exit  ->  While(cond, body), a node for each Exit
    Switch, ..., Merge                                   ->  If(then_branch, else_branch), a node for each Merge

The innermost are rewritten first, so that the bodies of outer ones have functional ops already. What fits neither form
stays, and the walk refuses it. Semantics: "Dynamic Control Flow in Large-Scale Machine Learning" (Yu et al., 2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ingot.frontends.tensorflow.proto import FunctionDef, GraphDef, Message, NodeDef, read_message
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

CONTROL_FLOW_OPS = frozenset(("Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond", "RefSwitch", "RefMerge"))
_LOOP_OPS = CONTROL_FLOW_OPS - {"Merge", "Switch"}


def functional(graph: GraphDef) -> GraphDef:
    """The graph without TensorFlow 1's control flow, where that has the forms above."""
    if not any(n.op in CONTROL_FLOW_OPS for n in graph.nodes.values()):
        return graph
    rewriter = _Rewriter(dict(graph.nodes), dict(graph.functions))
    while rewriter.step():
        pass
    return GraphDef(rewriter.nodes, rewriter.functions)


@dataclass(frozen=True, eq=False)
class _Variable:
    """A loop-carried variable: enter -> merge -> switch -> body -> next iteration, and switch -> exits."""

    enter: NodeDef
    merge: NodeDef
    switch: NodeDef
    next: NodeDef
    exits: tuple[NodeDef, ...]


class _Rewriter:
    def __init__(self, nodes: dict[str, NodeDef], functions: dict[str, FunctionDef]) -> None:
        self.nodes = nodes
        self.functions = functions

    def step(self) -> bool:
        """Rewrite one loop, or the branches on one condition; False where none is left that can be rewritten."""
        readers: dict[str, list[NodeDef]] = {}
        for n in self.nodes.values():
            for t in n.data_inputs:
                readers.setdefault(_name(t), []).append(n)
        frames: dict[str, list[NodeDef]] = {}
        for n in self.nodes.values():
            if n.op == "Enter":
                frames.setdefault(_text(n, "frame_name"), []).append(n)
        return any(self._loop(f, e, readers) for f, e in frames.items()) or self._branch()

    # loops

    def _loop(self, frame: str, enters: Sequence[NodeDef], readers: Mapping[str, Sequence[NodeDef]]) -> bool:
        variables = [v for e in enters for v in self._variables(e, readers)]
        tests = {_full(v.switch.data_inputs[1]) for v in variables}
        if not variables or len(tests) != 1:
            return False
        test = self.nodes[_name(tests.pop())]
        if test.op != "LoopCond":
            return False
        carried = {v.enter.name for v in variables}
        constant = [e for e in enters if e.name not in carried]
        shared = {f"{e.name}:0": f"outer_{i}" for i, e in enumerate(constant)}
        merges = {f"{v.merge.name}:0": f"value_{i}" for i, v in enumerate(variables)}
        switches = {f"{v.switch.name}:1": f"value_{i}" for i, v in enumerate(variables)}
        arguments = [*merges.values(), *shared.values()]
        cond = self._function(f"{frame}/cond", arguments, test.data_inputs[:1], {**merges, **shared})
        ends = [v.next.data_inputs[0] for v in variables]
        body = self._function(f"{frame}/body", arguments, [*ends, *shared], {**merges, **switches, **shared})
        if cond is None or body is None:
            return False
        loop = self._unused(f"{frame}/While")
        starts = [e.data_inputs[0] for e in (*(v.enter for v in variables), *constant)]
        self._put(loop, "While", starts, {"cond": self._register(cond), "body": self._register(body)})
        for i, v in enumerate(variables):
            for e in v.exits:
                self._put(e.name, "Identity", [f"{loop}:{i}"])
        removed = [test, *enters, *(n for v in variables for n in (v.merge, v.switch, v.next))]
        self._remove(removed, (cond, body))
        return True

    def _variables(self, enter: NodeDef, readers: Mapping[str, Sequence[NodeDef]]) -> Iterator[_Variable]:
        for merge in (n for n in readers.get(enter.name, ()) if n.op == "Merge"):
            sources = [self.nodes.get(_name(t)) for t in merge.data_inputs]
            nexts = [n for n in sources if n is not None and n.op == "NextIteration"]
            switches = [n for n in readers.get(merge.name, ()) if n.op == "Switch" and self._of_loop(n)]
            if len(nexts) != 1 or len(switches) != 1:
                continue
            exits = tuple(n for n in readers.get(switches[0].name, ()) if n.op == "Exit")
            yield _Variable(enter, merge, switches[0], nexts[0], exits)

    def _of_loop(self, switch: NodeDef) -> bool:
        test = self.nodes.get(_name(switch.data_inputs[1])) if len(switch.data_inputs) == 2 else None
        return test is not None and test.op == "LoopCond"

    # branches

    def _branch(self) -> bool:
        """Rewrite all merges of one condition that do not depend on each other."""
        merges: list[tuple[NodeDef, _Branches]] = []
        for merge in [n for n in self.nodes.values() if n.op == "Merge"]:
            branches = self._branches(merge)
            if branches is None or (merges and branches.pred != merges[0][1].pred):
                continue
            is_independent = all(
                m.name not in self._ancestors(branches.switches) and merge.name not in self._ancestors(b.switches)
                for m, b in merges
            )
            if is_independent:
                merges.append((merge, branches))
        return bool(merges) and self._if(merges)

    def _branches(self, merge: NodeDef) -> _Branches | None:
        """None for a merge of a loop, and for one whose branches hold control flow."""
        if len(merge.data_inputs) != 2:
            return None
        indices: list[set[int]] = []
        switches: dict[str, NodeDef] = {}
        for tensor in merge.data_inputs:
            side: set[int] = set()
            stack, visited = [_full(tensor)], set[str]()
            while stack:
                name, index = _split(stack.pop())
                node = self.nodes.get(name)
                if node is None or node.op in _LOOP_OPS or node.op == "Merge":
                    return None
                if node.op == "Switch":
                    if self._of_loop(node):
                        return None
                    switches[name] = node
                    side.add(index)
                elif name not in visited:
                    visited.add(name)
                    stack += map(_full, node.data_inputs)
            indices.append(side)
        preds = {_full(s.data_inputs[1]) for s in switches.values()}
        # TensorFlow writes the false branch first, which decides where branches of constants do not show their side
        order = (1, 0) if indices[0] <= {1} and indices[1] <= {0} and (indices[0] or indices[1]) else (0, 1)
        if len(preds) != 1 or any(indices[i] - {k} for k, i in enumerate(order)):
            return None
        no, yes = (merge.data_inputs[i] for i in order)
        return _Branches(preds.pop(), no, yes, tuple(switches.values()))

    def _ancestors(self, nodes: Iterable[NodeDef]) -> set[str]:
        """Names of all ancestors of these nodes."""
        visited: set[str] = set()
        stack = [_name(t) for n in nodes for t in n.data_inputs]
        while stack:
            name = stack.pop()
            if name not in visited and name in self.nodes:
                visited.add(name)
                stack += map(_name, self.nodes[name].data_inputs)
        return visited

    def _if(self, merges: Sequence[tuple[NodeDef, _Branches]]) -> bool:
        switches = list({s.name: s for _, b in merges for s in b.switches}.values())
        name = self._unused(f"{merges[0][0].name}/If")
        branch_functions: list[FunctionDef] = []
        for side, label in enumerate(("else", "then")):
            arguments = {f"{s.name}:{side}": f"outer_{i}" for i, s in enumerate(switches)}
            ends = [b.yes if side else b.no for _, b in merges]
            function = self._function(f"{name}/{label}", list(arguments.values()), ends, arguments)
            if function is None:
                return False
            branch_functions.append(function)
        no, yes = branch_functions
        operands = [merges[0][1].pred, *(s.data_inputs[0] for s in switches)]
        self._put(name, "If", operands, {"else_branch": self._register(no), "then_branch": self._register(yes)})
        for i, (merge, _) in enumerate(merges):
            self._put(merge.name, "Identity", [f"{name}:{i}"])
        self._remove((), branch_functions)
        return True

    # nodes and functions

    def _function(
        self, name: str, arguments: Sequence[str], ends: Sequence[str], sources: Mapping[str, str]
    ) -> FunctionDef | None:
        """A function that computes `ends` from the tensors `sources`. None where it would contain control flow."""
        body_nodes: dict[str, NodeDef] = {}
        stack = [_name(t) for t in ends if _full(t) not in sources]
        while stack:
            node = self.nodes.get(stack.pop())
            if node is None or node.op in CONTROL_FLOW_OPS:
                return None
            if node.name not in body_nodes:
                body_nodes[node.name] = node
                stack += [_name(t) for t in node.data_inputs if _full(t) not in sources]

        def inner_name(tensor: str) -> str:
            if _full(tensor) in sources:
                return sources[_full(tensor)]
            source, index = _split(tensor)
            return f"{source}::{index}"

        signature = _field(1, name.encode()) + b"".join(_field(2, _field(1, a.encode())) for a in arguments)
        signature += b"".join(_field(3, _field(1, f"end_{i}".encode())) for i in range(len(ends)))
        body = b"".join(
            _field(3, _node(n.name, n.op, map(inner_name, n.data_inputs), _attributes(n))) for n in body_nodes.values()
        )
        results = b"".join(
            _field(4, _field(1, f"end_{i}".encode()) + _field(2, inner_name(t).encode())) for i, t in enumerate(ends)
        )
        return FunctionDef.read(_message(_field(1, signature) + body + results))

    def _register(self, function: FunctionDef) -> str:
        self.functions[function.name] = function
        return function.name

    def _unused(self, name: str) -> str:
        while name in self.nodes:
            name += "_"
        return name

    def _put(self, name: str, op: str, inputs: Iterable[str], functions: Mapping[str, str] | None = None) -> None:
        """Add a node whose attributes are functions by name."""
        entries = [(k, _field(10, _field(1, f.encode()))) for k, f in (functions or {}).items()]
        attributes = [_field(1, k.encode()) + _field(2, v) for k, v in entries]
        self.nodes[name] = NodeDef.read(_message(_node(name, op, inputs, attributes)))

    def _remove(self, nodes: Iterable[NodeDef], functions: Iterable[FunctionDef]) -> None:
        """Remove nodes that were moved to functions, except those that others read."""
        for n in nodes:
            self.nodes.pop(n.name, None)
        inner_names = {name for f in functions for name in f.nodes}
        while True:
            read = {_name(t) for n in self.nodes.values() for t in n.data_inputs}
            dead = [name for name in inner_names if name in self.nodes and name not in read]
            if not dead:
                return
            for name in dead:
                del self.nodes[name]


@dataclass(frozen=True, eq=False)
class _Branches:
    """pred: the condition. no, yes: the operands of a merge. switches: the entries of the branches' operands."""

    pred: str
    no: str
    yes: str
    switches: tuple[NodeDef, ...]


# --- tensors by name, and messages


def _split(tensor: str) -> tuple[str, int]:
    name, _, index = tensor.partition(":")
    if index and not index.isdecimal():
        raise ImportModelError(f"a node reads {tensor!r}, which is no tensor of the graph")
    return name, int(index or 0)


def _name(tensor: str) -> str:
    return tensor.partition(":")[0]


def _full(tensor: str) -> str:
    return "{}:{}".format(*_split(tensor))


def _text(node: NodeDef, attribute: str) -> str:
    record = node.attributes.get(attribute)
    values = record.bytes(2) if record is not None else []
    return bytes(values[-1]).decode(errors="replace") if values else ""


def _attributes(node: NodeDef) -> list[bytes]:
    return [bytes(b) for b in node.message.bytes(5)]


def _node(name: str, op: str, inputs: Iterable[str], attributes: Iterable[bytes]) -> bytes:
    head = _field(1, name.encode()) + _field(2, op.encode()) + b"".join(_field(3, i.encode()) for i in inputs)
    return head + b"".join(_field(5, a) for a in attributes)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a message."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _message(data: bytes) -> Message:
    return read_message(memoryview(data), "a GraphDef", "control flow of TensorFlow 1")
