"""Loops and branches whose results have other sizes than they began with, under guard pages."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ingot
from tests.guard import ENDS, End, check_all

GROW = """func.func @main(%x: tensor<?x3xf32>, %n: tensor<i32>) -> tensor<?x3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<?x3xf32>
   cond { %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
     stablehlo.return %p : tensor<i1> }
   do { %one = stablehlo.constant dense<1> : tensor<i32>
     %j = stablehlo.add %i, %one : tensor<i32>
     %w = stablehlo.concatenate OPERANDS, dim = 0 : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
     stablehlo.return %j, %w : tensor<i32>, tensor<?x3xf32> }
  return %r#1 : tensor<?x3xf32> }"""
BRANCH = """func.func @main(%x: tensor<?x3xf32>, %n: tensor<i32>) -> tensor<?x3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %p = stablehlo.compare GT, %n, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %r = "stablehlo.if"(%p) ({
     BODY }, {
     stablehlo.return %x : tensor<?x3xf32> }) : (tensor<i1>) -> tensor<?x3xf32>
  return %r : tensor<?x3xf32> }"""
TWICE = """%w = stablehlo.concatenate %x, %x, dim = 0 : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
     stablehlo.return %w : tensor<?x3xf32>"""
LOOP_INSIDE = """%r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<?x3xf32>
   cond { %q = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
     stablehlo.return %q : tensor<i1> }
   do { %one = stablehlo.constant dense<1> : tensor<i32>
     %j = stablehlo.add %i, %one : tensor<i32>
     %w = stablehlo.concatenate %v, %x, dim = 0 : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
     stablehlo.return %j, %w : tensor<i32>, tensor<?x3xf32> }
   stablehlo.return %r#1 : tensor<?x3xf32>"""
# the program, and how many times its argument is repeated
CASES = {
    "appended": (GROW.replace("OPERANDS", "%v, %x"), lambda n: 1 + n),
    "doubled": (GROW.replace("OPERANDS", "%v, %v"), lambda n: 2**n),
    "branch": (BRANCH.replace("BODY", TWICE), lambda n: 1 + (n > 0)),
    "loop in a branch": (BRANCH.replace("BODY", LOOP_INSIDE), lambda n: 1 + n),
}


@pytest.mark.parametrize("end", ENDS)
def test_results_of_other_sizes(end: End) -> None:
    def check(name: str) -> None:
        text, count = CASES[name]
        compiled = ingot.compile(text, threads=1, cache=False)
        for n in (0, 1, 3):
            for rows in (1, 5):
                x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
                np.testing.assert_array_equal(compiled(x, np.array(n, np.int32)), np.concatenate([x] * count(n)))

    check_all({name: partial(check, name) for name in CASES}, [end])
