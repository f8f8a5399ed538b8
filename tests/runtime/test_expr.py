import pytest

from ingot.runtime.expr import Expr, check, evaluate, linear_in, show
from ingot.support.errors import VerifyError


@pytest.mark.parametrize(
    ("expr", "value", "text"),
    [
        (7, 7, "7"),
        (("n",), 10, "n"),
        (("n", 2, "*", 1, "+"), 21, "((n * 2) + 1)"),
        (("n", 3, "//"), 3, "n // 3"),
        ((0, "n", "-", 3, "//"), -4, "((0 - n) // 3)"),
        ((0, "n", "-", 3, "%"), 2, "((0 - n) % 3)"),
        (("n", 3, "max"), 10, "max(n, 3)"),
        (("n", "m", "min"), 4, "min(n, m)"),
    ],
)
def test_values_and_text(expr: Expr, value: int, text: str):
    check(expr, {"n", "m"}, "here")
    assert evaluate(expr, {"n": 10, "m": 4}) == value
    assert show(expr) == text


@pytest.mark.parametrize("expr", [("+",), (1, 2), (1, "+"), (), ("unknown",), (1, 2, "**")])
def test_malformed(expr: Expr):
    with pytest.raises(VerifyError, match="size expression"):
        check(expr, {"n"}, "here")


def test_zero_divisor():
    with pytest.raises(VerifyError, match="divisor"):
        evaluate((1, "n", "//"), {"n": 0})


def test_plain_symbols():
    assert linear_in(("n",)) == ("n", 1, 0)
    assert linear_in((2, "n", "*", 3, "+")) == ("n", 2, 3)
    assert linear_in(("n", "m", "+")) is None and linear_in((8, "n", "-")) is None and linear_in(("n", 2, "//")) is None
    assert linear_in((3,)) is None and linear_in(3) is None
