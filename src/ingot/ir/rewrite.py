"""The rewrite engine: named rules, composed with `+`, applied bottom-up to a fixpoint.

    rewrite(graph, RuleSet((Rule("neg-neg", Neg, lambda n: ...),)) + OTHER)  ->  graph

A rule receives one node whose operands are in normal form, and returns an equal node, or None for no change. Nothing is
mutated; nodes are interned, so a memo from node to normal form is the only state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field

from ingot.ir.node import Graph, Node, Op, Project
from ingot.ir.show import show_node
from ingot.ir.walk import topological
from ingot.support import flags
from ingot.support.dataclass import dataclass
from ingot.support.errors import VerifyError
from ingot.support.limits import check_time

# The result of a rule: a node of the same types, or one single-result node for each result.
Result = Node | tuple[Node, ...]


@dataclass(frozen=True)
class Rule:
    """A rewrite of nodes whose op is a `root` (subclasses included), where `fits` accepts the classes of the operands'
    ops.
    """

    name: str
    root: type[Op]
    apply: Callable[[Node], Result | None]
    accepts_operands: Callable[[tuple[type[Op], ...]], bool] | None = None


@dataclass(frozen=True)
class RuleSet:
    """Rules in order of preference."""

    rules: tuple[Rule, ...] = ()
    parts: tuple[RuleSet, ...] = field(default=(), compare=False, repr=False)  # of a sum; they share their caches
    _by_classes: dict[tuple[type[Op], ...], tuple[Rule, ...]] = field(default_factory=dict, compare=False, repr=False)

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(self.rules + other.rules, (self, other))

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def candidates(self, n: Node) -> tuple[Rule, ...]:
        """The rules that may apply to `n`, by the classes of its op and of its operands' ops."""
        return self._of((type(n.op), *[type(i.op) for i in n.inputs]))

    def _of(self, classes: tuple[type[Op], ...]) -> tuple[Rule, ...]:
        candidates = self._by_classes.get(classes)
        if candidates is None:
            if self.parts:
                candidates = tuple(r for part in self.parts for r in part._of(classes))
            else:
                same_root = (r for r in self.rules if issubclass(classes[0], r.root))
                candidates = tuple(
                    r for r in same_root if r.accepts_operands is None or r.accepts_operands(classes[1:])
                )
            self._by_classes[classes] = candidates
        return candidates


def rules(*members: Rule) -> RuleSet:
    return RuleSet(members)


class Fuel:
    """A budget of rewrites. used: rewrites so far. rules: their rules. last: that of the latest one."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.used = 0
        self.last = ""
        self.rules: set[str] = set()

    def burn(self, rule: str) -> bool:
        """Count one rewrite; False if the budget is exhausted."""
        if self.limit is not None and self.used >= self.limit:
            return False
        self.used += 1
        self.last = rule
        self.rules.add(rule)
        return True


_tank: ContextVar[Fuel | None] = ContextVar("ingot_fuel", default=None)


@contextmanager
def fueled(limit: int | None = None) -> Iterator[Fuel]:
    """One budget for all optimizing rewrites in the context: `limit`, else INGOT_FUEL, else unlimited.

    A pipeline opens one per compilation, so that INGOT_FUEL=n counts over all passes; bisecting n finds the rewrite
    that breaks a model, and `Fuel.last` names it.
    """
    tank = Fuel(flags.fuel() if limit is None else limit)
    token = _tank.set(tank)
    try:
        yield tank
    finally:
        _tank.reset(token)


def current_fuel() -> Fuel:
    """The budget of the surrounding `fueled` context, else a new one from INGOT_FUEL."""
    return _tank.get() or Fuel(flags.fuel())


def rewrite(graph: Graph, ruleset: RuleSet, *, mandatory: bool = False) -> Graph:
    """Return `graph` with `ruleset` applied to a fixpoint, bodies of ops included; the same object if no rule applies.

    `mandatory` rewrites (lowerings) use no fuel. INGOT_DEBUG>=3 prints each rewrite to stderr. Raises VerifyError for
    a rule that changes types, and for rules that undo each other or do not terminate.
    """
    fuel = Fuel(None) if mandatory else current_fuel()
    return _Rewriter(ruleset, fuel, flags.debug_level() >= 3).graph(graph)


class _Rewriter:
    def __init__(self, ruleset: RuleSet, fuel: Fuel, trace: bool) -> None:
        self.ruleset = ruleset
        self.fuel = fuel
        self.trace = trace
        self.results: dict[Node, Result] = {}
        self.bodies: dict[Graph, Graph] = {}
        self.limit = 1000

    def graph(self, graph: Graph) -> Graph:
        done = self.results
        nodes = graph.nodes()
        self.limit += 200 * len(nodes)
        for n in nodes:  # operands first
            if n not in done:
                replacement = self.step(n)
                if replacement is None:
                    done[n] = n
                elif isinstance(replacement, Node) and replacement in done:
                    done[n] = done[replacement]
                else:
                    self.settle(n, replacement)
        for n in graph.inputs:
            if done[n] is not n:
                raise VerifyError(f"a rule rewrote the graph input {n}")
        return graph.with_outputs(_only_output(done[n]) for n in graph.outputs)

    def body(self, graph: Graph) -> Graph:
        if graph not in self.bodies:
            self.bodies[graph] = self.graph(graph)
        return self.bodies[graph]

    def settle(self, root: Node, replacement: Result) -> None:
        """Bring `root`, which is replaced by `replacement`, and all nodes that this needs to normal form in
        `results`."""
        done = self.results
        check_time(root.loc or root.op.name)
        stack = [root, *_nodes_of(replacement)]
        replacements: dict[Node, Result] = {root: replacement}
        while stack:
            n = stack[-1]
            if n in done:
                stack.pop()
                continue
            next_form = replacements.get(n)
            if next_form is None:
                is_blocked = False
                for i in n.inputs:
                    if i not in done:
                        stack.append(i)
                        is_blocked = True
                if is_blocked:
                    continue
                next_form = self.step(n)
                if next_form is None:
                    done[n] = n
                    continue
            pending = [p for p in _nodes_of(next_form) if p not in done]
            if not pending:
                done[n] = (
                    tuple(_only_output(done[p]) for p in next_form) if isinstance(next_form, tuple) else done[next_form]
                )
            elif n in replacements:
                # the replacement of n is above n on the stack: meeting n first means that its replacement needs n
                raise VerifyError(f"rules undo each other: {show_node(n)} came back", got=f"rule {self.fuel.last}")
            else:
                replacements[n] = next_form
                stack += pending

    def step(self, n: Node) -> Result | None:
        """One rewrite of `n`, whose operands are done; None if it is in normal form."""
        done = self.results
        if type(n.op) is Project:
            source = done[n.inputs[0]]
            if isinstance(source, tuple):
                return source[n.op.index]
        old = n
        for i in n.inputs:
            if done[i] is not i:
                n = n.with_inputs([_only_operand(done[i], i) for i in n.inputs])
                if n in done:
                    return n
                break
        bodies = n.op.bodies
        if bodies:
            op = n.op.map_bodies(self.body)
            if op is not n.op:
                return op(*n.inputs, loc=n.loc)
        for rule in self.ruleset.candidates(n):
            new = rule.apply(n)
            if new is None or new is n:
                continue
            self.check(rule, n, new)
            if not self.fuel.burn(rule.name):
                break
            self.limit -= 1
            if self.limit < 0:
                raise VerifyError(f"rule {rule.name} does not come to an end at {show_node(n)}")
            self.report(rule, n, new)
            return new
        if n is old:
            return None
        done[n] = n
        return n

    def check(self, rule: Rule, old: Node, new: Result) -> None:
        types = tuple(p.type for p in new) if isinstance(new, tuple) else new.types
        if types != old.types:
            raise VerifyError(f"rule {rule.name} on {show_node(old)}", expected=old.types, got=types)

    def report(self, rule: Rule, old: Node, new: Result) -> None:
        for part in _nodes_of(new):
            _set_location(part, old)
        if self.trace:
            to = ", ".join(show_node(p) for p in new) if isinstance(new, tuple) else show_node(new)
            print(f"{rule.name} #{self.fuel.used}: {show_node(old)}  ->  {to}", file=sys.stderr)


def _nodes_of(result: Result) -> tuple[Node, ...]:
    return result if isinstance(result, tuple) else (result,)


def _only_output(result: Result) -> Node:
    if isinstance(result, tuple):
        raise VerifyError(f"expected one result where {len(result)} are read")
    return result


def _only_operand(result: Result, source: Node) -> Node:
    if isinstance(result, tuple):
        raise VerifyError(f"results of {source} are read without Project")
    return result


def _set_location(new: Node, old: Node) -> None:
    """Give new nodes without a source location that of the node that they replace."""
    if not old.loc:
        return
    stack = [new]
    while stack:
        n = stack.pop()
        if not n.loc and n.inputs and n.id > old.id:
            n.loc = old.loc
            stack += n.inputs


def replace_nodes(graph: Graph, by: Mapping[Node, Node]) -> Graph:
    """Return the graph with nodes replaced. The replacements may use nodes of the graph, which are replaced in them
    too."""
    if not by:
        return graph
    images: dict[Node, Node] = {}
    for n in topological(graph.outputs, lambda n: (by[n],) if n in by else n.inputs):
        images[n] = images[by[n]] if n in by else n.with_inputs([images[i] for i in n.inputs])
    return graph.with_outputs(images[o] for o in graph.outputs)
