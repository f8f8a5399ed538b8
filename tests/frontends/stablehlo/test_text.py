"""Text to syntax and back."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from ingot.frontends.stablehlo import literals
from ingot.frontends.stablehlo.pretty import parse
from ingot.frontends.stablehlo.printer import show
from ingot.frontends.stablehlo.syntax import Dense, Number, Raw
from ingot.frontends.stablehlo.types import Unsupported, tensor_type
from ingot.ir import types as T
from ingot.support.errors import ImportModelError
from tests.frontends.stablehlo.programs import PROGRAMS, Program


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_what_is_printed_is_read_as_the_same(program: Program):
    text = show(parse(program.text))
    assert show(parse(text)) == text


def test_attributes_keep_their_types():
    (op, _) = (
        parse("""module @m {
  func.func @main() -> tensor<2xi32> {
    %0 = "stablehlo.iota"() <{iota_dimension = 0 : i64, a = "x\\0A\\22", b = [1 : i8, true], c = {d, e = @f::@g},
      k = array<i1: true, false>, t = tensor<?xf32, #stablehlo.bounds<3>>}> : () -> tensor<2xi32> loc("a.py":3:1)
    return %0 : tensor<2xi32>
  }
}""")
        .functions["main"]
        .body.operations
    )
    assert op.attributes["iota_dimension"] == Number("0", "i64")
    assert op.attributes["a"] == 'x\n"'
    assert op.attributes["c"] == {"d": None, "e": op.attributes["c"]["e"]}  # type: ignore[index]
    assert op.attributes["t"] == Raw("tensor<?xf32, #stablehlo.bounds<3>>")
    assert op.loc == '"a.py" : 3 : 1'


@pytest.mark.parametrize(("text", "message"), [
    ("", "expected a function"),
    ("module {", "expected '}'"),
    ("func.func @main() {\n  %0 = stablehlo.add %1\n", "expected more text"),
    ("func.func @main() {\n  ; return\n}", "line 2:3"),
    ("module { func.func @f() { return } func.func @f() { return } }", "one function @f"),
    ("func.func @main() { " + '"a.b"() ({ ' * 200, "levels of nesting"),
    ("func.func @main() { \"a.b\"() {x = " + "[" * 5000 + "} : () -> () }", "levels of nesting"),
    ("func.func @main(%a: tensor<" + "<" * 10000, "expected ')'"),
])  # fmt: skip
def test_text_that_is_no_program_says_where(text: str, message: str):
    with pytest.raises(ImportModelError) as e:
        parse(text, "model.mlir")
    assert message in str(e.value)
    assert "model.mlir" in str(e.value)


def test_any_cut_of_a_program_is_an_error_of_ours():
    text = "\n".join(p.text.replace("@main", f"@{p.name}").replace("@step", f"@step_{p.name}") for p in PROGRAMS[:6])
    for end in range(0, len(text), 41):
        with suppress(ImportModelError):
            parse(text[:end])


@pytest.mark.parametrize(("body", "type", "expected"), [
    ("[[1, -2], [3, 4]]", "tensor<2x2xi8>", np.array([[1, -2], [3, 4]], np.int8)),
    ("0x7FC00000", "tensor<f32>", np.array(np.nan, np.float32)),
    ("[1.5, 0xFF800000]", "tensor<2xf32>", np.array([1.5, -np.inf], np.float32)),
    ("true", "tensor<3xi1>", np.ones(3, bool)),
    ('"0x05"', "tensor<4xi1>", np.array([1, 0, 1, 0], bool)),
    ('"0x0000803F00000040"', "tensor<2xf32>", np.array([1, 2], np.float32)),
    ("", "tensor<0x3xf32>", np.zeros((0, 3), np.float32)),
    ("255", "tensor<2xui8>", np.full(2, 255, np.uint8)),
])  # fmt: skip
def test_literals(body: str, type: str, expected: np.ndarray):
    (array,) = literals.arrays(Dense(body, type), {})
    np.testing.assert_array_equal(array, expected)
    assert array.dtype == expected.dtype
    (parsed,) = literals.arrays(literals.dense(array, type), {})
    assert parsed.tobytes() == array.tobytes() and parsed.shape == array.shape


def test_literals_of_complex_numbers_and_splats():
    real, imag = literals.arrays(Dense("(1.0, -2.0)", "tensor<3xcomplex<f64>>"), {})
    assert real.tolist() == [1, 1, 1] and imag.tolist() == [-2, -2, -2]


@pytest.mark.parametrize("body", ["[1, 2]", '"0x0000"', "[1, 2, 3, 4000]", "[a, b, c]", '"zz"'])
def test_literals_that_do_not_fill_their_type(body: str):
    with pytest.raises(ImportModelError):
        literals.arrays(Dense(body, "tensor<3xi8>"), {})


def test_types():
    assert tensor_type("tensor<2x?xbf16>").shape == (2, None)
    assert tensor_type("tensor<complex<f64>>").complex
    assert tensor_type("tensor<?x3xf32, #stablehlo.bounds<7, ?>>").limits == (7, None)
    quant = tensor_type("tensor<4x2x!quant.uniform<u8<1:255>:f32:1, {0.5:3, 2.5e-1}>>").quant
    assert quant is not None
    assert (quant.storage, quant.low, quant.scales, quant.zeros, quant.axis) == (T.u8, 1, (0.5, 0.25), (3, 0), 1)
    with pytest.raises(Unsupported, match="f8E4M3B11FNUZ"):
        tensor_type("tensor<2xf8E4M3B11FNUZ>")
    with pytest.raises(ImportModelError, match="too large"):
        tensor_type("tensor<99999999x99999999xf32>")
