"""The rewrite engine: named rules, composed with `+`, applied bottom-up to a fixpoint.

    rewrite(graph, RuleSet((Rule("neg-neg", Neg, lambda n: ...),)) + OTHER)  ->  graph

A rule looks at one node whose operands are in normal form already, and returns an equal node, or None: no change.
Nothing mutates; nodes are interned, so a memo from node to normal form is all the state there is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field

from ingot.ir.node import Graph, Node, Op, Project
from ingot.ir.show import show_node
from ingot.support import flags
from ingot.support.dataclass import dataclass
from ingot.support.errors import VerifyError
from ingot.support.limits import in_time

# What a rule gives: a node of the same types, or one single-result node for each result.
Result = Node | tuple[Node, ...]


@dataclass(frozen=True)
class Rule:
    """A rewrite of nodes whose op is a `root` (subclasses included), and whose operands' ops `fits` may accept."""

    name: str
    root: type[Op]
    apply: Callable[[Node], Result | None]
    fits: Callable[[tuple[type[Op], ...]], bool] | None = None


@dataclass(frozen=True)
class RuleSet:
    """Rules in order of preference."""

    rules: tuple[Rule, ...] = ()
    parts: tuple[RuleSet, ...] = field(default=(), compare=False, repr=False)  # asked first: they remember more
    _known: dict[tuple[type[Op], ...], tuple[Rule, ...]] = field(default_factory=dict, compare=False, repr=False)

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(self.rules + other.rules, (self, other))

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def of(self, n: Node) -> tuple[Rule, ...]:
        """The rules that may apply to `n`, by its op's class and those of its operands."""
        return self._of((type(n.op), *[type(i.op) for i in n.inputs]))

    def _of(self, classes: tuple[type[Op], ...]) -> tuple[Rule, ...]:
        found = self._known.get(classes)
        if found is None:
            if self.parts:
                found = tuple(r for part in self.parts for r in part._of(classes))
            else:
                mine = (r for r in self.rules if issubclass(classes[0], r.root))
                found = tuple(r for r in mine if r.fits is None or r.fits(classes[1:]))
            self._known[classes] = found
        return found


def rules(*given: Rule) -> RuleSet:
    return RuleSet(given)


class Fuel:
    """How many rewrites may still happen; `used` of them did, the last one by the rule `last`."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.used = 0
        self.last = ""

    def burn(self, rule: str) -> bool:
        """Take the fuel for one rewrite; False when none is left."""
        if self.limit is not None and self.used >= self.limit:
            return False
        self.used += 1
        self.last = rule
        return True


_tank: ContextVar[Fuel | None] = ContextVar("ingot_fuel", default=None)


@contextmanager
def fueled(limit: int | None = None) -> Iterator[Fuel]:
    """One tank for every optimizing rewrite inside the block: `limit`, else INGOT_FUEL, else endless.

    A pipeline opens one per compile, so that INGOT_FUEL=n counts over all passes; bisecting n finds the rewrite that
    breaks a model, and `Fuel.last` names it.
    """
    tank = Fuel(flags.fuel() if limit is None else limit)
    token = _tank.set(tank)
    try:
        yield tank
    finally:
        _tank.reset(token)


def current_fuel() -> Fuel:
    """The tank of the surrounding `fueled` block, else a fresh one from INGOT_FUEL."""
    return _tank.get() or Fuel(flags.fuel())


def rewrite(graph: Graph, ruleset: RuleSet, *, mandatory: bool = False) -> Graph:
    """`graph` with `ruleset` applied to a fixpoint, bodies of ops included; the same object if nothing fits.

    `mandatory` rewrites (lowerings) take no fuel. INGOT_DEBUG>=3 prints each rewrite to stderr. Raises VerifyError for
    a rule that changes types, and for rules that undo each other or never come to an end.
    """
    fuel = Fuel(None) if mandatory else current_fuel()
    return _Rewriter(ruleset, fuel, flags.debug_level() >= 3).graph(graph)


class _Rewriter:
    def __init__(self, ruleset: RuleSet, fuel: Fuel, trace: bool) -> None:
        self.ruleset = ruleset
        self.fuel = fuel
        self.trace = trace
        self.done: dict[Node, Result] = {}
        self.bodies: dict[Graph, Graph] = {}
        self.limit = 1000

    def graph(self, graph: Graph) -> Graph:
        done = self.done
        nodes = graph.nodes()
        self.limit += 200 * len(nodes)
        for n in nodes:  # operands first
            if n not in done:
                becomes = self.step(n)
                if becomes is None:
                    done[n] = n
                elif isinstance(becomes, Node) and becomes in done:
                    done[n] = done[becomes]
                else:
                    self.settle(n, becomes)
        for n in graph.inputs:
            if done[n] is not n:
                raise VerifyError(f"a rule rewrote the graph input {n}")
        return graph.with_outputs(_single(done[n]) for n in graph.outputs)

    def body(self, graph: Graph) -> Graph:
        if graph not in self.bodies:
            self.bodies[graph] = self.graph(graph)
        return self.bodies[graph]

    def settle(self, root: Node, becomes: Result) -> None:
        """Put `root`, which becomes `becomes`, and all that this needs into `done`."""
        done = self.done
        in_time(root.loc or root.op.name)
        stack = [root, *_parts(becomes)]
        waiting: dict[Node, Result] = {root: becomes}
        while stack:
            n = stack[-1]
            if n in done:
                stack.pop()
                continue
            found = waiting.get(n)
            if found is None:
                waits = False
                for i in n.inputs:
                    if i not in done:
                        stack.append(i)
                        waits = True
                if waits:
                    continue
                found = self.step(n)
                if found is None:
                    done[n] = n
                    continue
            pending = [p for p in _parts(found) if p not in done]
            if not pending:
                done[n] = tuple(_single(done[p]) for p in found) if isinstance(found, tuple) else done[found]
            elif n in waiting:
                # what n waits for is above n on the stack: to see n first is to need n for its own replacement
                raise VerifyError(f"rules undo each other: {show_node(n)} came back", got=f"rule {self.fuel.last}")
            else:
                waiting[n] = found
                stack += pending

    def step(self, n: Node) -> Result | None:
        """What `n`, all of whose operands are done, becomes next; None if it is in normal form."""
        done = self.done
        if type(n.op) is Project:
            source = done[n.inputs[0]]
            if isinstance(source, tuple):
                return source[n.op.index]
        old = n
        for i in n.inputs:
            if done[i] is not i:
                n = n.with_inputs([_whole(done[i], i) for i in n.inputs])
                if n in done:
                    return n
                break
        bodies = n.op.bodies
        if bodies:
            op = n.op.map_bodies(self.body)
            if op is not n.op:
                return op(*n.inputs, loc=n.loc)
        for rule in self.ruleset.of(n):
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
        for part in _parts(new):
            _locate(part, old)
        if self.trace:
            to = ", ".join(show_node(p) for p in new) if isinstance(new, tuple) else show_node(new)
            print(f"{rule.name} #{self.fuel.used}: {show_node(old)}  ->  {to}", file=sys.stderr)


def _parts(result: Result) -> tuple[Node, ...]:
    return result if isinstance(result, tuple) else (result,)


def _single(result: Result) -> Node:
    if isinstance(result, tuple):
        raise VerifyError(f"expected one result where {len(result)} are read")
    return result


def _whole(result: Result, source: Node) -> Node:
    if isinstance(result, tuple):
        raise VerifyError(f"results of {source} are read without Project")
    return result


def _locate(new: Node, old: Node) -> None:
    """Give what a rule just made the source location of what it stands for; parts that have one keep it."""
    if not old.loc:
        return
    stack = [new]
    while stack:
        n = stack.pop()
        if not n.loc and n.inputs and n.id > old.id:
            n.loc = old.loc
            stack += n.inputs
