"""The compiler's rules are proved, and a wrong rule is refuted with a counterexample."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable

import numpy as np
import pytest

pytest.importorskip("z3", reason="the proofs need z3-solver")

from ingot import ops
from ingot.ir.node import Node
from ingot.ir.rewrite import Rule, RuleSet, rules
from ingot.ir.types import DTYPES, DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from ingot.passes.core.gelu import GELU
from ingot.passes.core.identities import FAST_MATH, IDENTITIES, Identity
from ingot.passes.core.positions.attention_masks import mask_rules
from ingot.passes.core.positions.rules import Positions
from ingot.passes.core.simplify import SHAPES
from ingot.passes.view_chains import VIEW_CHAINS
from ingot.support.errors import InputError
from tools import prove
from tools.proofs import emulated, identities, instances, lowerings
from tools.proofs.structure import equal_elements
from tools.proofs.structure import prove as prove_instance
from tools.proofs.terms import Theory
from tools.proofs.verdict import Verdict

# f64 takes most of the time
FAST = tuple(t for t in identities.DTYPES_PROVED if t not in (f64, i64))


def check(verdicts: Iterable[Verdict]) -> list[Verdict]:
    results = list(verdicts)
    assert results
    assert [str(v) for v in results if v.state != "proved"] == []
    return results


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", FAST, ids=str)
def test_identities_hold_for_all_values(dtype: DType) -> None:
    check(identities.verdicts(IDENTITIES, (dtype,)))
    check(v for op in identities.COMMUTATIVE if (v := identities.commutativity(op, dtype)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (f64, i64), ids=str)
def test_identities_hold_for_all_values_of_64_bits(dtype: DType) -> None:
    check(identities.verdicts(IDENTITIES, (dtype,)))
    check(v for op in identities.COMMUTATIVE if (v := identities.commutativity(op, dtype)))


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda i: f"{i.text} {i.when}")
def test_each_identity_has_a_dtype(identity: Identity) -> None:
    assert any(identities.sides(identity, t) for t in identities.DTYPES_PROVED)


def test_fast_math_has_counterexamples() -> None:
    results = check(prove.GROUPS["fast-math"](""))
    assert len(results) == len(FAST_MATH) and all(v.witness for v in results)


def test_structural_rules_hold_for_all_sizes() -> None:
    proved = {v.rule.split(",")[0] for v in check(instances.verdicts((f16, bf16, f32, i8, i32, u8, boolean)))}
    expected = {r.name for s in (SHAPES, VIEW_CHAINS, GELU, mask_rules(Positions()), Positions().rules()) for r in s}
    assert proved == expected


@pytest.mark.slow
def test_conversions_hold_for_all_dtypes() -> None:
    check(prove_instance(SHAPES, *instance) for instance in instances.conversions())


def test_lowerings_keep_their_bounds() -> None:
    check(lowerings.verdicts())


def test_native_code_keeps_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowerings, "CHUNK", 1 << 20)
    around_one = range(0x3F000000, 0x40000000, 1 << 23)
    check([lowerings.all_floats("logistic", around_one)])
    truth, *_ = lowerings.BOUNDS[ops.Logistic]
    monkeypatch.setitem(lowerings.BOUNDS, ops.Logistic, (truth, 0.4, 0.4))
    assert lowerings.all_floats("logistic", around_one).state == "refuted"


def test_emulated_code_keeps_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """NEON's polynomials, in chunks from all binades."""
    if missing := [tool for tool in (emulated.COMPILER, emulated.EMULATOR) if shutil.which(tool) is None]:
        pytest.skip(f"no {missing[0]}")
    monkeypatch.setattr(lowerings, "CHUNK", 1 << 12)
    some = range(0, 1 << 32, 1 << 26)
    check([lowerings.all_floats("tanh", some, "cpu:aarch64")])
    truth, *_ = lowerings.BOUNDS[ops.Tanh]
    monkeypatch.setitem(lowerings.BOUNDS, ops.Tanh, (truth, 0.4, 0.4))
    assert lowerings.all_floats("tanh", some, "cpu:aarch64").state == "refuted"
    monkeypatch.setattr(emulated.shutil, "which", lambda tool: None)
    with pytest.raises(InputError, match="no aarch64-linux-gnu-gcc"):
        lowerings.all_floats("tanh", some, "cpu:aarch64")


def test_a_bound_that_is_too_small_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, *_ = lowerings.BOUNDS[ops.Exp]
    monkeypatch.setitem(lowerings.BOUNDS, ops.Exp, (truth, 0.5, 0.5))
    assert lowerings.in_f32(ops.Exp, bf16).state == "refuted"
    monkeypatch.setitem(lowerings.BOUNDS, ops.Exp, (np.expm1, 1.5, 1.5))
    assert lowerings.rounded(ops.Exp, bf16).state == "refuted"


# --- wrong rules: each is refuted, with values that the reference interpreter tells apart


@pytest.mark.parametrize(
    ("text", "when", "dtype", "witness"),
    [
        ("add(x, 0) -> x", "float", "f32", "-0.0"),  # signed zero
        ("subtract(0, x) -> negate(x)", "float", "bf16", "0.0"),  # signed zero
        ("maximum(x, lowest) -> maximum(x, x)", "float", "f32", None),  # true: not everything is refuted
        ("compare{EQ}(x, x) -> ones", "float", "f64", "nan"),  # NaN
        ("minimum(x, highest) -> minimum(highest, highest)", "float", "f16", ""),
        ("multiply(x, 0) -> 0", "float", "f32", ""),  # infinity
        ("maximum(abs(x), 0) -> abs(x)", "integer", "i32", "-2147483648"),  # integer extremes
        ("abs(x) -> maximum(x, negate(x))", "integer", "u8", ""),  # unsigned
        ("divide(multiply(x, 2), 2) -> x", "integer", "i8", ""),  # an overflowing product
        ("divide(multiply(x, y), y) -> x", "integer", "i8", ""),
        ("remainder(x, -1) -> x", "integer", "i32", ""),
        ("power(x, 3) -> multiply(x, x)", "float", "f16", ""),
        ("select(p, x, y) -> select(p, y, x)", "", "f32", ""),
        ("shift_right_arithmetic(shift_left(x, 1), 1) -> x", "integer", "i8", ""),
    ],
)
def test_wrong_identities_are_refuted(text: str, when: str, dtype: str, witness: str | None) -> None:
    verdict = identities.prove(Identity(text, when), DTYPES[dtype])
    assert verdict is not None
    assert verdict.state == ("proved" if witness is None else "refuted"), verdict
    assert (witness or "") in verdict.witness and "check the model" not in verdict.witness


def test_z3_refutes_what_samples_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "sampled", lambda identity, dtype: "")
    for text, when, dtype in (("maximum(abs(x), 0) -> abs(x)", "integer", i32), ("add(x, 0) -> x", "float", f32)):
        verdict = identities.prove(Identity(text, when), dtype)
        assert verdict is not None and (verdict.state, verdict.how) == ("refuted", "z3"), verdict
        assert "check the model" not in verdict.witness


def test_ulps_are_counted() -> None:
    assert identities.prove(Identity("power(x, 3) -> multiply(multiply(x, x), x)", ulps=0), f16).state == "refuted"  # type: ignore[union-attr]


A, B = instances.SIZES[:2]
X = instances.arg("x", A, B)
ROW, SQUARE = instances.arg("r", A), instances.arg("m", A, A)
LONG = instances.arg("l", A + 9)
FILLED = instances.arg("v")
COUNTER = ops.Iota(instances.TensorType(i64, (A,)), 0)()
PAD = ops.Pad((1,), (0,), (0,))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # a shifted index
        (ops.Slice((2,), (A,), (1,))(ops.Slice((1,), (A + 5,), (1,))(LONG)), ops.Slice((2,), (A,), (1,))(LONG)),
        (ops.Reverse((0,))(LONG), LONG),
        # the wrong axis, or order of axes
        (ops.Reverse((0,))(ops.Reverse((1,))(X)), ops.Reverse((0,))(X)),
        (ops.Transpose((1, 2, 0))(ops.Transpose((1, 2, 0))(instances.arg("y", A, A, A))), instances.arg("y", A, A, A)),
        (ops.BroadcastInDim((A, A), (0,))(ROW), ops.BroadcastInDim((A, A), (1,))(ROW)),
        # another padding value, a sum over another dimension
        (PAD(PAD(LONG, FILLED), instances.arg("w")), ops.Pad((2,), (0,), (0,))(LONG, FILLED)),
        (ops.Reduce("sum", (0,))(SQUARE), ops.Reduce("sum", (1,))(SQUARE)),
        # a merge of axes in another order
        (ops.Reshape((A * A,))(ops.Transpose((1, 0))(SQUARE)), ops.Reshape((A * A,))(SQUARE)),
        # a position that is off by one
        (ops.Compare("LE")(COUNTER, ops.full((A,), 0, i64)), ops.full((A,), True, boolean)),
        (ops.concat([LONG, LONG]), ops.concat([ops.Reverse((0,))(LONG), LONG])),
    ],
)  # fmt: skip
def test_wrong_structural_rules_are_refuted(before: Node, after: Node) -> None:
    verdict = equal_elements("planted", "", before, after, Theory(unbounded=True))
    assert verdict.state == "refuted", verdict
    assert verdict.witness


def test_a_wrong_rank_is_refuted() -> None:
    assert equal_elements("planted", "", ops.Reshape((A * B,))(instances.arg("x", A, B)), X).state == "refuted"


def test_a_rule_that_does_not_apply_is_not_proved() -> None:
    never = rules(Rule("never", ops.Transpose, lambda n: None))
    assert prove_instance(never, "never", "", ops.Transpose((1, 0))(instances.arg("x", A, B))).state == "open"
    assert isinstance(never, RuleSet)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert prove.main(["identities", "--only", "negate(negate", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["state"] for line in lines} == {"proved"} and len(lines) >= 8
    monkeypatch.setattr(prove, "IDENTITIES", (Identity("add(x, 0) -> x"),))
    assert prove.main(["identities", "--only", "add(x, 0)"]) == 1
    assert "refuted add(x, 0) -> x [f32]" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        prove.main(["identities", "--only", "nothing has this name"])
    assert "no rule of identities has 'nothing has this name'" in capsys.readouterr().err
