"""VNN-LIB 1 and 2: what is read, against a brute-force reading of the formulas, and what is refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.transform.bounds.search.vnnlib import Property, parse_property, read_property

V1 = """; a comment (with parentheses
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (<= X_0 0.5)) (assert (>= X_0 -1e-1))
(assert (and (<= X_1 2) (>= X_1 1.5)))
(assert (or (and (<= Y_0 Y_1) (>= Y_0 3.25)) (>= Y_1 (+ Y_0 X_0 1))))
"""
V2 = """(vnnlib-version <2.0>)
(declare-network net (declare-input image Real [1, 2]) (declare-output scores float32 [2]))
(assert (<= image[0,0] 0.5)) (assert (<= (* -2.0 image[0,0]) 0.2))
(assert (and (<= image[0,1] 2) (>= image[0,1] 1.5)))
(assert (or (and (<= scores[0] scores[1]) (<= (- scores[0]) (- 3.25))) (> (- scores[1] scores[0] image[0,0]) 1)))
"""


def _holds(property_: Property, x: np.ndarray, y: np.ndarray) -> bool:
    return any(
        bool((a.lower <= x).all() and (x <= a.upper).all() and (a.input_rows @ x + a.output_rows @ y <= a.limits).all())
        for a in property_.alternatives
    )


@pytest.mark.parametrize("text", [V1, V2])
def test_both_versions_say_the_same(text: str, tmp_path: Path) -> None:
    path = tmp_path / "property.vnnlib"
    path.write_text(text)
    result = read_property(path)
    assert (result.inputs, result.outputs, len(result.alternatives)) == (2, 2, 2)
    np.testing.assert_allclose(result.alternatives[0].lower, [-0.1, 1.5])
    np.testing.assert_allclose(result.alternatives[1].upper, [0.5, 2])
    rng, counts = np.random.default_rng(0), [0, 0]
    for _ in range(500):
        x, y = rng.uniform([-0.2, 1.4], [0.6, 2.1]), rng.uniform(0, 6, 2)
        inside = -0.1 <= x[0] <= 0.5 and 1.5 <= x[1] <= 2
        expected = bool(inside and ((y[0] <= y[1] and y[0] >= 3.25) or y[1] >= y[0] + x[0] + 1))
        assert _holds(result, x, y) == expected
        counts[expected] += 1
    assert min(counts) > 50


def test_an_impossible_box_is_no_alternative() -> None:
    text = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 0))(assert (>= X_0 1))(assert (<= Y_0 0))"
    assert parse_property(text).alternatives == ()


def test_a_box_alone_is_met_by_each_of_its_inputs() -> None:
    assert [a.limits.size for a in parse_property(BOX).alternatives] == [0]


@pytest.mark.parametrize(
    ("condition", "at", "holds"),
    [
        ("(<= Y_0 1)", 1.0, True),
        ("(< Y_0 1)", 1.0, False),
        ("(< Y_0 1)", np.nextafter(1.0, 0), True),
        ("(> Y_0 1)", 1.0, False),
        ("(<= (+ Y_0 1e16 1) 1e16)", -1.0, True),  # in f64 the sum is 1e16
        ("(<= (+ Y_0 1e16 1) 1e16)", -0.5, False),
        ("(<= (- (* 3 0.1) Y_0) 0.3)", 0.0, False),  # three times the float 0.1 is more than the float 0.3
        ("(>= Y_0 (+ 0.1 0.2))", float(np.nextafter(0.3, 0)), False),
    ],
)
def test_limits_are_exact(condition: str, at: float, holds: bool) -> None:
    property_ = parse_property(f"{BOX}(assert {condition})")
    assert _holds(property_, np.zeros(1), np.asarray([at])) == holds


BOX = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 1))(assert (>= X_0 0))"
NETWORK = "(vnnlib-version <2.0>)(declare-network n (declare-input X Real [2])(declare-output Y Real []))"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an assertion"),
        ("(assert (<= X_0 1))", "a declared variable, got X_0"),
        (BOX + "(assert (<= Y_0 1)", "balanced parentheses"),
        (BOX + ")", "balanced parentheses"),
        (BOX + "stray", "statements in parentheses"),
        (BOX + "(assert (<= Y_0] 1))", "words, numbers and parentheses"),
        (BOX + '(assert (<= Y_0 1))(set-info :x "open)', "words, numbers and parentheses"),
        ("(declare-const X_0 Real)(exit)(assert (<= X_0 1))", "expected an assertion"),
        (NETWORK.replace("X Real", "X int8"), "elements of Real or floats, got int8"),
        (BOX + "(declare-const X_0 Real)", "one declaration of X_0, got another"),
        (BOX.replace("Real", "Int"), "declarations and assertions"),
        (BOX + "(assert (<= (* Y_0 X_0) 1))", "linear conditions"),
        (BOX + "(assert (not (<= Y_0 1)))", "and, or, <=, >=, < or >"),
        (BOX + "(assert (<= Y_1 1))", "a declared variable, got Y_1"),
        (BOX + "(assert (<= Y_0 1e999))", "a number or a declared|numbers of f64"),
        (BOX + "(assert (<= Y_0 nan))", "a number or a declared variable"),
        (BOX + "(frobnicate)", "declarations and assertions"),
        (BOX + "(assert " + "(and " * 100 + "(<= Y_0 1)" + ")" * 101, "nested parentheses"),
        (BOX + "(assert (or (<= Y_0 1) (<= Y_0 2)))" * 14, "at most 4096 alternatives"),
        ("(declare-const X_0 Real)(declare-const X_999999999 Real)", "an element below"),
        ("(declare-const X_1 Real)(declare-const Y_0 Real)(assert (<= Y_0 1))", "left out"),
        ("(declare-const Z_0 Real)", "variables X_i"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 1))", "a lower and an upper bound"),
        ("(vnnlib-version <3.0>)", "version <2.0>"),
        (NETWORK + "(declare-network m (declare-input A Real [2])(declare-output B Real []))", "one network"),
        (NETWORK + "(assert (<= X[2] 1))", r"an element of X, of shape \[2\], got X\[2\]"),
        (NETWORK + "(assert (<= X[0,0] 1))", r"an element of X, of shape \[2\]"),
        (NETWORK + "(assert (<= Y[0] 1))", r"an element of Y, of shape \[\]"),
        (NETWORK + "(assert (<= X[0] 1))(assert (>= X[0] 1))", r"bound of each input, got none of X\[1\]"),
        (NETWORK + "(declare-const X_0 Real)", "without a network, got X_0"),
        ("(declare-const X_0 Real)" + NETWORK, "one network, got variables X_i and Y_j before it"),
        ("(vnnlib-version <2.0>)(declare-network n (declare-input X Real [99999999,999]))", "elements"),
        ('(vnnlib-version <2.0>)(declare-network n (declare-hidden X Real [2] "a"))', "hidden values are not read"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ingot.ImportModelError, match=message):
        parse_property(text)


def test_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "p.vnnlib").write_bytes(b"\xef\xbb\xbf" + f"{BOX}(assert (<= Y_0 1))".encode())
    assert len(read_property(tmp_path / "p.vnnlib").alternatives) == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("binary", "absent"):
        with pytest.raises(ingot.ImportModelError, match="a readable VNN-LIB file"):
            read_property(tmp_path / name)


def test_random_bytes_never_crash() -> None:
    rng = np.random.default_rng(7)
    pieces = [
        "(",
        ")",
        "and",
        "or",
        "<=",
        "X_0",
        "Y_0",
        "1.5",
        "X[0]",
        "assert",
        " ",
        "[",
        "]",
        '"',
        ";",
        "\n",
        "-",
        "*",
    ]
    for text in (V1, V2):
        for _ in range(300):
            at = int(rng.integers(len(text)))
            broken = text[:at] + "".join(rng.choice(pieces, 3)) + text[at + int(rng.integers(4)) :]
            with suppress(ingot.ImportModelError):
                parse_property(broken)
