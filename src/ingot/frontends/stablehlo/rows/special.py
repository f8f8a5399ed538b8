"""chlo's special functions, in f64 where digits cancel."""

from __future__ import annotations

from collections.abc import Callable

from ingot.frontends.stablehlo.values import Call, Table
from ingot.ir.node import Node
from ingot.ops import special

row = Table()


def _row(function: Callable[..., Node]) -> Callable[..., Node]:
    def apply(c: Call, *xs: Node) -> Node:
        return function(*xs)

    return apply


for _name in ("erfc", "erf_inv", "lgamma", "digamma", "bessel_i1e", "zeta", "polygamma"):
    row(f"chlo.{_name}", f"chlo.broadcast_{_name}")(_row(getattr(special, _name)))
