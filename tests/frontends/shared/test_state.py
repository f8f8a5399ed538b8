"""State told by names."""

from __future__ import annotations

import pytest

from ingot import ops
from ingot.frontends.shared.state import keep
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input
from ingot.ir.parse import parse
from ingot.ir.show import show
from ingot.ir.types import Shape, TensorType, f32
from ingot.ir.verify import verify
from ingot.support.errors import InputError, VerifyError


def graph(shape: Shape = (3,)) -> Graph:
    x, past, other = (Input(name, TensorType(f32, shape))() for name in ("x", "past", "other"))
    y, present = ops.Add()(x, past), ops.Mul()(x, past)
    return Graph((past, x, other), (y, present, ops.Exp()(other)), ("y", "present", "more"))


def test_inputs_go_last_and_new_values_first() -> None:
    result = keep(keep(graph(), {"past": "present"}), {"other": "more"})
    assert result.state == ("other", "past")
    assert [n.op.label for n in result.inputs if isinstance(n.op, Input)] == ["x", "other", "past"]
    assert result.output_names == ("more", "present", "y")
    verify(result)
    assert keep(graph(), {}) == graph()


def test_the_text_says_what_lasts() -> None:
    result = keep(graph(), {"past": "present"})
    assert 'state ["past"] {' in show(result)
    assert parse(show(result)) == result


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"none": "present"}, "input 'none': expected one of past, x, other"),
        ({"past": "none"}, "output 'none': expected one of y"),
        ({"past": "y", "x": "y"}, "an output of its own"),
    ],
)
def test_names_that_do_not_fit(pairs: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        keep(graph(), pairs)


def test_types_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="one type of fixed size"):
        keep(graph((symbol("n"),)), {"past": "present"})
    x, y = Input("x", TensorType(f32, (3,)))(), Input("y", TensorType(f32, (4,)))()
    with pytest.raises(InputError, match="one type of fixed size"):
        keep(Graph((x, y), (y, x), ("a", "b")), {"x": "a"})
    with pytest.raises(VerifyError, match="one type of fixed size"):
        verify(Graph((x,), (y,), state=("s",)))
