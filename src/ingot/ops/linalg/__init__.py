"""Linear algebra: factorizations as loops over columns or panels of columns, and functions built on them."""

# ruff: noqa: F401 - re-exports the names of the room

from ingot.ops.linalg.cholesky import Cholesky
from ingot.ops.linalg.jacobi import SVD, Eigh, singular_values
from ingot.ops.linalg.ldl import LDL, ldl_solve
from ingot.ops.linalg.lu import LU
from ingot.ops.linalg.reflectors import HouseholderQR, Reflect
from ingot.ops.linalg.schur import Eig
from ingot.ops.linalg.spectra import (
    completed,
    exponential,
    householder_product,
    least_squares,
    pseudo_inverse,
    qr,
    svd,
)
from ingot.ops.linalg.systems import (
    cholesky,
    cholesky_solve,
    determinant,
    diagonal,
    inverse,
    lu_solve,
    permutation_from_pivots,
    solve,
    solve_triangular,
    symmetric,
    transposed,
    triangle,
)
from ingot.ops.linalg.triangular import TriangularSolve
from ingot.ops.linalg.unitary import (
    complex_cholesky,
    complex_eigh,
    complex_qr,
    complex_solve_triangular,
    complex_svd,
)
