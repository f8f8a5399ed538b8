"""Linear algebra: factorizations as loops over columns or panels of columns, and what is built of them."""

# ruff: noqa: F401 - this file is the flat face of the room

from ingot.ops.linalg.cholesky import Cholesky
from ingot.ops.linalg.lu import LU
from ingot.ops.linalg.systems import (
    cholesky,
    cholesky_solve,
    determinant,
    diagonal,
    inverse,
    log_determinant,
    lu_solve,
    order_of,
    solve,
    solve_triangular,
    transposed,
    triangle,
)
from ingot.ops.linalg.triangular import TriangularSolve
