"""Factorizations and what is solved by them against PyTorch; where signs and bases are free, by what they give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import ingot
from tests.frontends.torch.agree import Function, Spy, agree, compile_whole

BATCH = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
POSITIVE = BATCH @ BATCH.mT + torch.eye(5)
SIDES = torch.randn(2, 1, 5, 3, generator=torch.Generator().manual_seed(1))
OF_A_MATRIX: dict[str, Callable[[torch.Tensor], object]] = {
    "cholesky": torch.linalg.cholesky,
    "cholesky_upper": lambda a: torch.linalg.cholesky(a, upper=True),
    "cholesky_inverse": torch.cholesky_inverse,
    "inverse": torch.linalg.inv,
    "lu": torch.linalg.lu,
    "lu_factor": torch.linalg.lu_factor,
    "lu_unpack": lambda a: torch.lu_unpack(*torch.linalg.lu_factor(a)),
    "determinant": torch.linalg.det,
    "log_determinant": torch.linalg.slogdet,
    "power": lambda a: torch.linalg.matrix_power(a, -2),
    "qr": torch.linalg.qr,
    "reflections": lambda a: torch.linalg.householder_product(*torch.geqrf(a)),
    "singular_values": torch.linalg.svdvals,
    "singular_vectors": lambda a: _reconstruct(*torch.linalg.svd(a, full_matrices=False)),
    "eigenvectors": lambda a: _of_eigenvectors(*torch.linalg.eigh(a)),
    "upper_eigenvectors": lambda a: _of_eigenvectors(*torch.linalg.eigh(a, UPLO="U")),
    "eigenvalues": torch.linalg.eigvalsh,
    "pseudo_inverse": lambda a: (torch.linalg.pinv(a[..., :3]), torch.linalg.pinv(a, hermitian=True)),
    "rank_and_condition": lambda a: (torch.linalg.matrix_rank(a), torch.linalg.cond(a)),
    "norms": lambda a: [torch.linalg.matrix_norm(a, p) for p in (2, -2, "nuc", "fro", 1)],
    "exponential": lambda a: torch.linalg.matrix_exp(a / 4),
    "info": lambda a: (torch.linalg.inv_ex(a), torch.linalg.cholesky_ex(a)),
}


def _reconstruct(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> torch.Tensor:
    return (u * s[..., None, :]) @ vh


def _of_eigenvectors(w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return w, (v * w[..., None, :]) @ v.mH


def _indefinite(a: torch.Tensor) -> torch.Tensor:
    """Of blocks of 1x1 and of 2x2."""
    return (a + a.mT) * torch.tensor([0, 0, 1, 0, 3])[:, None] + torch.diag_embed(a[..., 0].new_tensor([0, 0, 0, 9, 0]))


OF_A_SYSTEM: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "solve": torch.linalg.solve,
    "solve_right": lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    "solve_vectors": lambda a, b: torch.linalg.solve(a, b[..., 0].expand(2, 3, 5)),
    "triangular": lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
    "triangular_right": lambda a, b: torch.linalg.solve_triangular(a, b.mT, upper=True, left=False),
    "triangular_unit": lambda a, b: torch.linalg.solve_triangular(a / 9, b, upper=True, unitriangular=True),
    "triangular_transposed": lambda a, b: torch.triangular_solve(b, a, transpose=True),
    "reflected": lambda a, b: torch.ormqr(*torch.geqrf(a), b.expand(2, 3, 5, 3)),
    "reflected_right": lambda a, b: torch.ormqr(*torch.geqrf(a), b.mT.expand(2, 3, 3, 5), left=False, transpose=True),
    "cholesky": lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)),
    "cholesky_upper": lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a, upper=True), upper=True),
    "ldl": lambda a, b: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(_indefinite(a)), b),
    "ldl_factor": lambda a, b: torch.linalg.ldl_factor_ex(_indefinite(a)),
    "lu": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
    "lu_adjoint": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=True),
    "lu_right": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b.mT, left=False),
}


@pytest.mark.parametrize("name", OF_A_MATRIX)
def test_of_a_matrix(name: str) -> None:
    agree(OF_A_MATRIX[name], POSITIVE)


COMPLEX = torch.complex(BATCH[0, 0, :3, :3], BATCH[0, 1, :3, :3]).to(torch.complex128)
OF_A_COMPLEX_MATRIX: dict[str, Callable[[torch.Tensor], object]] = {
    "cholesky": lambda a: torch.cholesky_solve(a[:, :2], torch.linalg.cholesky(_hermitian(a), upper=True), upper=True),
    "qr": lambda a: (torch.linalg.qr(a[:, :2]), torch.linalg.qr(a), torch.linalg.qr(a[:2])),
    "eigh": lambda a: _of_eigenvectors(*torch.linalg.eigh(a, UPLO="U")),
    "eig": lambda a: _of_any_eigenvectors(*torch.linalg.eig(a)),
    "real_eig": lambda a: _of_any_eigenvectors(*torch.linalg.eig(a.real)),
    "svd": lambda a: (torch.linalg.svdvals(a[:2]), *_unitary(*torch.linalg.svd(a[:, :2], full_matrices=True))),
    "rank_one": lambda a: _unitary(*torch.linalg.svd(a[:, :1] @ a[:1, :2])),
    "determinant": lambda a: (torch.linalg.det(a), torch.linalg.slogdet(a)),
    "triangles": lambda a: (
        torch.linalg.solve_triangular(a, a[:2], upper=True, left=False),
        torch.linalg.solve_triangular(a, a[:, :2], upper=False, unitriangular=True),
    ),
    "solve_right": lambda a: torch.linalg.solve(a, a[:1] * 2 + 1, left=False),
}


def _hermitian(a: torch.Tensor) -> torch.Tensor:
    return a @ a.mH + torch.eye(3)


def _of_any_eigenvectors(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (v * w) @ torch.linalg.inv(v)


def _unitary(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k = s.shape[-1]
    return s, (u[:, :k] * s) @ vh[:k], u.mH @ u, vh @ vh.mH


@pytest.mark.parametrize("name", OF_A_COMPLEX_MATRIX)
def test_of_a_complex_matrix(name: str) -> None:
    agree(OF_A_COMPLEX_MATRIX[name], COMPLEX, tolerance=1e-12)


@pytest.mark.parametrize("n", [0, 1])
def test_of_the_smallest_matrices(n: int) -> None:
    def all_of_them(a: torch.Tensor) -> list[object]:
        return [OF_A_MATRIX[name](a) for name in ("cholesky_upper", "lu_unpack", "inverse", "log_determinant")]

    agree(all_of_them, POSITIVE[0, :, :n, :n].double())


@pytest.mark.parametrize("name", OF_A_SYSTEM)
def test_of_a_system(name: str) -> None:
    agree(OF_A_SYSTEM[name], POSITIVE, SIDES)


def test_of_matrices_that_are_not_square() -> None:
    for x in (torch.randn(3, 6, generator=torch.Generator().manual_seed(2)), BATCH[0, :, :, :2]):
        agree(torch.linalg.lu, x)
        agree(torch.linalg.lu_factor, x)


def test_what_raises_in_pytorch_is_nan() -> None:
    model = ingot.compile(Function(lambda a: (torch.linalg.cholesky(a), torch.linalg.inv(a))).eval(), (POSITIVE[0],))
    bad = torch.stack([POSITIVE[0, 0], -torch.eye(5), torch.zeros(5, 5)])
    factor, inverse = model(bad)
    np.testing.assert_allclose(factor[0], torch.linalg.cholesky(bad[0]), rtol=1e-5, atol=1e-5)
    assert factor[1:, -1, -1].isnan().all()
    assert not inverse[2].isfinite().any()


@pytest.mark.slow
def test_under_torch_compile_with_any_size() -> None:
    solve = compile_whole(torch.linalg.solve, dynamic=True)
    for n in (4, 7, 70):
        a = torch.randn(2, n, n, generator=torch.Generator().manual_seed(n)) + n**0.5 * torch.eye(n)
        b = torch.randn(2, n, 3, generator=torch.Generator().manual_seed(n))
        torch.testing.assert_close(a @ solve(a, b), b, rtol=1e-3, atol=1e-4)


def test_systems_in_16_bits() -> None:
    """Which eager PyTorch has no kernels for: rounded once, they are those of float32."""
    a, b = POSITIVE[0].half(), BATCH[0, ..., :3].half()

    def of_all(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = torch.linalg.solve_triangular(a, b, upper=False)
        return half, torch.linalg.ldl_solve(*torch.linalg.ldl_factor(a), b)

    with torch.no_grad():
        got = compile_whole(of_all, backend=Spy().backend)(a, b)
    want = of_all(a.float(), b.float())
    for g, w in zip(got, want, strict=True):
        assert g.dtype == torch.float16
        torch.testing.assert_close(g.float(), w, rtol=1e-2, atol=1e-2)
