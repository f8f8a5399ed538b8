from __future__ import annotations

import pytest

from ingot.ir.node import Graph, Node, Op, Project
from ingot.ir.rewrite import Rule, RuleSet, fueled, rewrite, rules
from ingot.support.errors import VerifyError
from tests.ir.tiny import TAdd, TCall, TNeg, TSplit, arg

X, Y = arg("rx", 4), arg("ry", 4)


def neg(n: Node, loc: str = "") -> Node:
    return TNeg()(n, loc=loc)


def _double(n: Node) -> Node | None:
    (a,) = n.inputs
    return a.inputs[0] if isinstance(a.op, TNeg) else None


def _lift(n: Node) -> Node | None:
    """-a + -b -> -(a + b)"""
    a, b = n.inputs
    are_negated = isinstance(a.op, TNeg) and isinstance(b.op, TNeg)
    return neg(TAdd()(a.inputs[0], b.inputs[0])) if are_negated else None


DOUBLE = rules(Rule("double-negation", TNeg, _double))
LIFT = rules(Rule("lift-negation", TAdd, _lift))


def test_reaches_a_fixpoint_through_several_rules() -> None:
    a = TAdd()(neg(X, "m.py:1"), neg(Y), loc="m.py:2")
    g = Graph((X, Y), (neg(a), neg(neg(neg(X)))))
    rewritten = rewrite(g, DOUBLE + LIFT)
    assert rewritten.outputs == (TAdd()(X, Y), neg(X))
    assert rewritten.outputs[0].loc == "m.py:2"
    assert rewrite(rewritten, DOUBLE + LIFT) is rewritten


def test_rules_for_a_base_class_and_composition_order() -> None:
    op_types: list[type[Op]] = []
    spy = rules(Rule("spy", Op, lambda n: op_types.append(type(n.op))))
    rewrite(Graph((X,), (neg(X),)), spy + DOUBLE)
    assert TNeg in op_types
    assert [r.name for r in spy + DOUBLE + LIFT] == ["spy", "double-negation", "lift-negation"]
    assert len(spy + RuleSet()) == 1


def test_rewrites_inside_bodies() -> None:
    body = Graph((X,), (neg(neg(X)), X))
    rewritten = rewrite(Graph((Y,), TCall(body)(Y).results), DOUBLE)
    (call,) = {o.inputs[0] for o in rewritten.outputs}
    assert call.op.bodies[0].outputs == (X, X)


def test_a_rule_may_give_one_node_per_result() -> None:
    swap = rules(Rule("halves", TSplit, lambda n: (neg(n.inputs[0]),) * 2))
    x = arg("rz", 0)
    rewritten = rewrite(Graph((x,), TSplit()(x).results), swap)
    assert rewritten.outputs == (neg(x), neg(x))


def test_fuel_stops_and_counts_over_several_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = X
    for _ in range(8):
        chain = neg(TAdd()(neg(chain), neg(Y)))
    g = Graph((X, Y), (chain,))
    with fueled() as full:
        done = rewrite(g, DOUBLE + LIFT)
    assert full.used == 16
    with fueled(3) as tank:
        part = rewrite(g, LIFT)
        assert rewrite(part, DOUBLE) is part
    assert (tank.used, tank.last) == (3, "lift-negation")
    monkeypatch.setenv("INGOT_FUEL", "0")
    assert rewrite(g, DOUBLE + LIFT) is g
    assert rewrite(g, DOUBLE + LIFT, mandatory=True) == done


def test_debug_prints_each_rewrite(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("INGOT_DEBUG", "3")
    rewrite(Graph((X,), (neg(neg(X)),)), DOUBLE)
    assert "double-negation #1: %" in capsys.readouterr().err


def test_errors_name_the_rule() -> None:
    flip = Rule("flip", TAdd, lambda n: TAdd()(n.inputs[1], n.inputs[0]))
    with pytest.raises(VerifyError, match=r"rules undo each other: .* got rule flip"):
        rewrite(Graph((X, Y), (TAdd()(X, Y),)), rules(flip))
    wrap = Rule("wrap", TNeg, lambda n: neg(TAdd()(n, n)))
    with pytest.raises(VerifyError, match=r"rules undo each other: .* got rule wrap"):
        rewrite(Graph((X,), (neg(X),)), rules(wrap))
    grow = Rule("grow", TNeg, lambda n: neg(TAdd()(n.inputs[0], n.inputs[0])))
    with pytest.raises(VerifyError, match=r"rule grow does not come to an end"):
        rewrite(Graph((X,), (neg(X),)), rules(grow))
    bad_rule = Rule("lie", TNeg, lambda n: arg("other", 9))
    with pytest.raises(VerifyError, match=r"rule lie on .*: expected \(f32\[4\],\), got \(f32\[9\],\)"):
        rewrite(Graph((X,), (neg(X),)), rules(bad_rule))


def test_deep_graphs_need_no_stack() -> None:
    chain = X
    for _ in range(20_001):
        chain = neg(TAdd()(chain, Y))
    fold = rules(Rule("drop", TAdd, lambda n: n.inputs[0]))
    rewritten = rewrite(Graph((X, Y), (chain,)), fold + DOUBLE)
    assert rewritten.outputs[0] is neg(X)


def test_projections_follow_their_source() -> None:
    a, b = TSplit()(neg(neg(X))).results
    rewritten = rewrite(Graph((X,), (TAdd()(a, b),)), DOUBLE)
    assert rewritten.outputs[0] is TAdd()(*TSplit()(X).results)
    assert isinstance(rewritten.outputs[0].inputs[0].op, Project)
