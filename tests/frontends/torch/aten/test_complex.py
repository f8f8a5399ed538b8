"""Complex tensors, Fourier transforms, short-time transforms and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ingot.frontends.torch import export_module, import_exported
from ingot.support.errors import UnsupportedOpError
from tests.frontends.torch.agree import agree, close, compile_whole, run

AT = torch.tensor([1, 3, 0])
CASES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "arithmetic": lambda z, x: (z + z, z - 1, 2 - z, z * z, z * x, x * z, z * 2j, z / x, z / z, 1 / z, -z, x + 1j),
    "promotion": lambda z, x: (z * x.int(), z + x.double(), z * True, z.to(torch.complex128), x.to(torch.complex64)),
    "parts of conjugates": lambda z, x: (z.conj().imag * 2, z.mH.imag + 1, (z * 2).conj().imag, z.conj().conj().imag),
    "parts": lambda z, x: (z.real, z.imag, z.conj(), torch.view_as_real(z), z.abs(), z.angle(), (z * z.conj()).real),
    "made": lambda z, x: (
        torch.complex(x, 2 * x),
        torch.polar(x, x),
        torch.full_like(z, 2),
        torch.full((2,), 1 + 2j),
        torch.zeros(2, dtype=torch.complex64) + z[:, :2],
    ),
    "functions": lambda z, x: (z.exp(), z.log(), z**3, z**-2, z.square(), z.reciprocal()),
    "trigonometry": lambda z, x: (z.sin(), z.cos(), z.tan(), z.asin(), z.acos(), z.atan()),
    "hyperbolic": lambda z, x: (z.sinh(), z.cosh(), z.tanh(), z.asinh(), z.acosh(), z.atanh()),
    "roots and powers": lambda z, x: (z.sqrt(), z.rsqrt(), z**0.5, z ** (1 + 2j), z**z, 2**z, z**x, torch.sgn(z)),
    "logarithms": lambda z, x: (z.expm1(), z.log1p(), z.log2(), z.log10(), z.sigmoid(), F.silu(z)),
    "compared": lambda z, x: (z == z, z != z.conj(), z == x, z.isnan(), z.isinf(), z.isfinite(), torch.isclose(z, z)),
    "true": lambda z, x: (torch.logical_not(z), z.any(), z.all(1), z.count_nonzero(), z.bool()),
    "folded": lambda z, x: (z.prod(), z.prod(1), z.cumprod(0), z.norm(), torch.linalg.vector_norm(z, dim=1), z.var(1)),
    "folded scalars": lambda z, x: (z[0, 0].prod(0, keepdim=True), z[0, 0].sum(0), z[0, 0].cumprod(0)),
    "in one": lambda z, x: (torch.addcmul(z, z, z, value=2), torch.addcdiv(z, z, z + 4), torch.lerp(z, 2 * z, 0.3)),
    "moved": lambda z, x: (z.mT, z[:, 1:], z.view(-1), torch.cat([z, x], 0), z.flip(1), z[torch.tensor([1, 0])]),
    "moved into others": lambda z, x: (
        torch.diagonal_scatter(z, x[0, :3] * z[0, :3]),
        z.masked_scatter(x > 0, z + 1),
        z.index_fill(1, AT, 2 - 1j),
        z.scatter(0, torch.zeros(1, 4, dtype=torch.int64), 3j),
        torch.take(z, AT),
        z.diagonal(),
    ),
    "copies of views": lambda z, x: (
        torch.select_copy(z, 0, 1),
        torch.slice_copy(z, 1, 1),
        torch.transpose_copy(z, 0, 1),
        torch.unbind_copy(z),
        torch.permute_copy(z, (1, 0)),
        torch.split_copy(z, 2),
        torch.unsqueeze_copy(z, 0),
        torch.expand_copy(z, (2, 3, 4)),
        torch.narrow_copy(z, 1, 1, 2),
        torch.atleast_3d(z),
        z.fliplr(),
        z.moveaxis(0, 1),
        z.tensor_split(2, 1),
        torch.meshgrid(z[0], z[1], indexing="ij"),
        torch.concatenate([z, x]),
        z.hsplit(2),
    ),
    "reduced": lambda z, x: (z.sum(), z.mean(1), z.cumsum(0)),
    "chosen": lambda z, x: (torch.where(x > 0, z, 0), z.masked_fill(x > 0, 1), torch.where(x > 0, z, x)),
    "products": lambda z, x: (z @ z.mT, torch.einsum("ij,kj->ik", z, z), torch.mv(z, z[0])),
    "added to products": lambda z, x: (
        torch.addmm(z @ z.mT, z, z.mT, beta=2, alpha=0.5),
        F.linear(z, z),
        F.linear(z, z, z[:, 0]),
        F.linear(x.to(z.dtype), x.to(z.dtype), z[:, 1]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_arithmetic(name: str) -> None:
    agree(CASES[name], torch.randn(3, 4, dtype=torch.complex64), torch.randn(3, 4))


def test_what_torch_compile_decomposes() -> None:
    """Ops whose handlers take real tensors only."""

    def decomposed(z: Tensor) -> tuple[Tensor, ...]:
        return (
            *CASES["in one"](z, z),
            torch.vdot(z[0], z[1]),
            z.std(1),
            z.trace(),
            z.norm(dim=1),
            torch.diag_embed(z),
            F.pixel_shuffle(z[None, :, :, None], 2),
            F.unfold(z[None, None], 2),
        )

    z = torch.randn(4, 4, dtype=torch.complex64)
    close(compile_whole(decomposed, backend="ingot")(z), decomposed(z))


def test_magnitude_neither_overflows_nor_loses_infinity() -> None:
    inf, nan = torch.inf, torch.nan
    parts = [[3e30, 4e30], [1e-30, 1e-30], [0.0, 0.0], [inf, 1.0], [-inf, inf], [-0.0, -2.0], [inf, nan], [nan, -inf]]
    agree(lambda x: (torch.view_as_complex(x).abs(), torch.view_as_complex(x[:3]).reciprocal()), torch.tensor(parts))


def test_exponential_of_infinities_and_nan() -> None:
    values = torch.tensor([0.0, -0.0, 1, -2, torch.inf, -torch.inf, torch.nan, 1e3, -1e3])
    grid = torch.cartesian_prod(values, values)
    agree(lambda x: torch.view_as_complex(x).exp(), grid)
    agree(lambda x: torch.view_as_complex(x).exp(), grid.double())


def test_systems_inverses_and_series() -> None:
    """By the real matrix [[A, -B], [B, A]] in the place of A + Bi."""

    def solved(z: Tensor) -> tuple[Tensor, ...]:
        square = z @ z.mH + torch.eye(3)
        one = torch.linalg.solve(square, z[:, 0])
        return (
            torch.linalg.inv(square),
            torch.linalg.solve(square, z),
            one,
            torch.linalg.pinv(z),
            torch.matrix_exp(square),
        )

    agree(solved, torch.randn(3, 4, dtype=torch.complex128))


CONVOLUTIONS: dict[str, nn.Module] = {
    "1d": nn.Conv1d(4, 6, 3, padding=1, dtype=torch.complex64),
    "same": nn.Conv1d(4, 6, 4, padding="same", bias=False, dtype=torch.complex64),
    "grouped": nn.Conv1d(4, 6, 3, groups=2, stride=2, dtype=torch.complex64),
    "transposed": nn.ConvTranspose1d(4, 6, 3, stride=2, dtype=torch.complex64),
    "2d": nn.Sequential(nn.Unflatten(2, (3, 3)), nn.Conv2d(4, 2, 2, dtype=torch.complex64)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    agree(CONVOLUTIONS[name], torch.randn(2, 4, 9, dtype=torch.complex64))


FOURIER: dict[str, Callable[[Tensor], Any]] = {
    "real": lambda x: (torch.fft.rfft(x), torch.fft.rfft(x, 7, 0, "ortho"), torch.fft.irfft(torch.fft.rfft(x), 12)),
    "complex": lambda x: (torch.fft.fft(x), torch.fft.ifft(x, norm="forward"), torch.fft.ifft(torch.fft.fft(x, dim=0))),
    "many axes": lambda x: (torch.fft.fft2(x), torch.fft.rfft2(x), torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape)),
    "hermitian": lambda x: (torch.fft.hfft(torch.fft.ihfft(x), 12), torch.fft.fftshift(torch.fft.fft(x))),
    "padded": lambda x: torch.fft.irfft(torch.fft.rfft(x, n=24) * torch.fft.rfft(x.flip(-1), n=24), n=24)[..., :12],
}


@pytest.mark.parametrize("name", FOURIER)
def test_fourier(name: str) -> None:
    agree(FOURIER[name], torch.randn(5, 12))


def test_short_time_transform_and_back() -> None:
    window = torch.hann_window(20)

    def denoised(x: Tensor) -> tuple[Tensor, ...]:
        z = torch.stft(x, 20, 5, window=window, return_complex=True)
        odd = torch.stft(x, 24, 7, 20, window=window, return_complex=True, normalized=True)
        return (
            z.abs(),
            torch.istft(z * z.abs().sigmoid(), 20, 5, window=window, length=x.shape[-1]),
            torch.istft(odd, 24, 7, 20, window=window, normalized=True),
            torch.istft(torch.cat([z, z[..., 1:-1, :].flip(-2)], -2), 20, 5, window=window),
        )

    agree(denoised, torch.randn(2, 103))


def test_length_of_the_batch_is_dynamic() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(9, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=16)

    net = Filter().eval()
    model = import_exported(export_module(net, (torch.randn(2, 16),), dynamic={"x": {0: "batch"}}))
    x = torch.randn(5, 16)
    with torch.no_grad():
        close(run(model, x), net(x))


class Spectra(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mixed = torch.fft.fft2(x, norm="ortho")
        inverse = torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[-1])
        return mixed.real, mixed.imag, torch.fft.ifft(mixed).imag, inverse, torch.view_as_real(torch.fft.rfft(x, dim=1))


def test_length_is_dynamic() -> None:
    net = Spectra().eval()
    model = import_exported(export_module(net, (torch.randn(2, 6, 8),), dynamic={"x": {1: "rows", 2: "columns"}}))
    for shape in ((2, 6, 8), (2, 7, 2), (2, 96, 129)):
        x = torch.randn(shape)
        close(run(model, x), net(x))


def test_refusals_name_the_op() -> None:
    with pytest.raises(UnsupportedOpError, match=r"aten.linalg_lu_factor.*on complex numbers"):
        agree(lambda z: torch.linalg.lu_factor(z), torch.randn(3, 3, dtype=torch.complex64))


def test_a_part_of_fixed_length_is_transformed_back() -> None:
    class Net(nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return torch.fft.irfft(z, 9)

    z = torch.randn(4, 7, dtype=torch.complex64)
    model = import_exported(export_module(Net().eval(), (z,), dynamic={"z": {1: "length"}}))
    close(run(model, z), torch.fft.irfft(z, 9))
