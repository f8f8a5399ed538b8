"""Functions of torch that fix open sizes at the example's, replaced by compositions that keep them open.

Their C++ code takes sizes as plain integers, or compares values, so that torch.export would specialize the example's
size. Each is defined here as torch documents it.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ingot.frontends.torch.values import sizes_per_axis

Size = Any  # an int or a SymInt


class OpenSizes(TorchFunctionMode):
    """Within it, calls of the functions below keep sizes symbolic; other calls are untouched.
    lengths: whether `len` fixed a size that `open_lengths` would keep open."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.lengths |= func is Tensor.__len__ and _open(tuple(args[0].shape[:1]))
        definition = _DEFINITIONS.get(func)
        options: Mapping[str, Any] = kwargs or {}
        if definition is None or not any(map(_open, (*args, *options.values()))):
            return func(*args, **options)
        return definition(*args, **options)


@contextmanager
def open_lengths() -> Iterator[None]:
    """While torch traces, `len(x)` is x.shape[0] even where that is symbolic; Python would convert it to an int."""
    length = builtins.len

    def of(x: Any) -> Size:
        return x.shape[0] if isinstance(x, Tensor) and x.shape and _open(x.shape[0]) else length(x)

    with patch.object(builtins, "len", of):
        yield


def _open(value: object) -> bool:
    """Whether `value` is a symbolic size, or a tensor with one."""
    if isinstance(value, Tensor):
        return any(map(_open, value.shape))
    return isinstance(value, torch.SymInt) or (isinstance(value, tuple | list) and any(map(_open, value)))


def _affine_grid(theta: Tensor, size: Sequence[Size], align_corners: bool | None = None) -> Tensor:
    """The positions [N, D, H, W, 3] (or [N, H, W, 2]) of an image's pixels under the maps `theta`, as (x, y, z)."""
    batch, _, *extents = size
    places = [_centers(n, theta, align_corners) for n in extents]
    axes = torch.meshgrid(*places, indexing="ij")
    points = torch.stack((*axes[::-1], torch.ones_like(axes[0])), -1).flatten(0, -2)
    return (points @ theta.mT).reshape(batch, *extents, len(extents))


def _centers(n: Size, dtype_source: Tensor, align_corners: bool | None) -> Tensor:
    """The `n` pixel centers from -1 to 1; the outermost are at the ends if `align_corners`."""
    indices = torch.arange(n, dtype=dtype_source.dtype, device=dtype_source.device)
    if align_corners:
        return indices * (2 / torch.sym_max(n - 1, 1)) - 1 + (0 if n > 1 else 1)
    return (2 * indices + 1) / n - 1


def _one_hot(tensor: Tensor, num_classes: Size = -1) -> Tensor:
    if isinstance(num_classes, int) and num_classes < 0:
        return F.one_hot(tensor)
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


def _linspace(start: Any, end: Any, steps: Size, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """Equal steps, computed from the nearer end."""
    indices = torch.arange(steps, dtype=torch.float64, device=options.get("device"))
    step = (end - start) / torch.sym_max(steps - 1, 1)
    return _typed(torch.where(indices < steps // 2, start + step * indices, end - step * (steps - 1 - indices)), dtype)


def _logspace(
    start: Any, end: Any, steps: Size, base: float = 10.0, *, dtype: torch.dtype | None = None, **options: Any
) -> Tensor:
    return _typed(base ** _linspace(start, end, steps, dtype=torch.float64, **options), dtype)


def _pool(pool: Callable[..., Tensor], reduce_axis: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`pool`, except that a window that spans an axis of open size is the reduction `whole` of that axis."""

    def pooled(input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **named: Any) -> Any:
        n = input.dim() - 2
        kernel, steps, paddings = (list(sizes_per_axis(v, n)) for v in (kernel_size, stride or kernel_size, padding))
        for axis, (size, side) in enumerate(zip(kernel, paddings, strict=True), 2):
            if _open(size) and _is_same_size(size, input.shape[axis]) and side == 0:
                input = reduce_axis(input, axis, keepdim=True)
                kernel[axis - 2] = steps[axis - 2] = 1
        return pool(input, kernel, steps, padding, *rest, **named)

    return pooled


def _is_same_size(a: Any, b: Any) -> bool:
    return isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and a.node.expr == b.node.expr


def _triangle(keep: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    def indices(row: Size, col: Size, offset: int = 0, **options: Any) -> Tensor:
        mask = keep(torch.ones(row, col, dtype=torch.bool, device=options.get("device")), offset)
        return mask.nonzero().T.to(options.get("dtype") or torch.int64)

    return indices


def _kron(input: Tensor, other: Tensor) -> Tensor:
    rank = max(input.dim(), other.dim())
    a, b = (x.reshape(*[1] * (rank - x.dim()), *x.shape) for x in (input, other))
    pairs = [position for axis in range(rank) for position in (axis, rank + axis)]
    outer = (a.reshape(*a.shape, *[1] * rank) * b).permute(pairs)
    return outer.reshape([m * n for m, n in zip(a.shape, b.shape, strict=True)])


def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return input.flatten()[indices.flatten()]
    axis = dim % input.dim()
    shape = torch.broadcast_shapes(*((*y.shape[:axis], 1, *y.shape[axis + 1 :]) for y in (input, indices)))

    def broadcast(y: Tensor) -> Tensor:
        return y.expand(*shape[:axis], y.shape[axis], *shape[axis + 1 :])

    return broadcast(input).gather(axis, broadcast(indices))


def _vander(x: Tensor, N: Size | None = None, increasing: bool = False) -> Tensor:
    n = x.shape[-1] if N is None else N
    powers = torch.arange(n, device=x.device)
    return x.unsqueeze(-1) ** (powers if increasing else n - 1 - powers)


def _cosines(coefficients: Callable[..., tuple[float, ...]]) -> Callable[..., Tensor]:
    """A window a0 - a1 cos(t) + a2 cos(2t) over one period; unless periodic, its last value equals the first."""

    def window(
        window_length: Size, periodic: bool = True, *shape: float, dtype: torch.dtype | None = None, device: Any = None,
        layout: Any = None, requires_grad: bool = False, **named: float,
    ) -> Tensor:  # fmt: skip
        t = 2 * math.pi * _period_fractions(window_length, periodic, device)
        y = sum((-1) ** k * a * torch.cos(k * t) for k, a in enumerate(coefficients(*shape, **named)))
        return _typed(y, dtype)

    return window


def _period_fractions(n: Size, periodic: bool, device: Any) -> Tensor:
    """The positions of `n` points of a window, as fractions of its period."""
    return torch.arange(n, dtype=torch.float64, device=device) / torch.sym_max(n if periodic else n - 1, 1)


def _typed(values: Any, dtype: torch.dtype | None) -> Tensor:
    return values.to(dtype or torch.get_default_dtype())


def _bartlett(
    window_length: Size, periodic: bool = True, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> Tensor:
    return _typed(1 - (2 * _period_fractions(window_length, periodic, device) - 1).abs(), dtype)


def _kaiser(
    window_length: Size, periodic: bool = True, beta: float = 12.0, *, dtype: torch.dtype | None = None,
    device: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    """Kaiser and Schafer 1980: I0(beta sqrt(1 - (2t - 1)^2)) / I0(beta)."""
    t = 2 * _period_fractions(window_length, periodic, device) - 1
    scale = torch.special.i0(torch.tensor(beta, dtype=torch.float64))
    return _typed(torch.special.i0(beta * (1 - t * t).clamp(min=0).sqrt()) / scale, dtype)


def _cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Covariances of the rows, whose columns may have frequencies (fweights) and weights (aweights)."""
    lines = input.reshape(1, -1) if input.dim() < 2 else input
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    if weights is None:
        scaled = centered = lines - lines.mean(1, keepdim=True)
        divisor: Any = torch.sym_max(lines.shape[1] - correction, 0)
    else:
        total = weights.sum()
        centered = lines - (lines * weights).sum(1, keepdim=True) / total
        total_weight = total if aweights is None else (weights * aweights).sum() / total
        scaled, divisor = centered * weights, (total - correction * total_weight).clamp(min=0)
    return (scaled @ centered.mH / divisor).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    c = _cov(input)
    if not c.dim():
        return c / c
    deviation = c.diagonal().sqrt()
    return (c / deviation[:, None] / deviation).clamp(-1, 1)


def _istft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, center: bool = True, normalized: bool = False, onesided: bool | None = None,
    length: Size | None = None, return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """Windowed inverse transforms, overlapped and added, divided by the sum of the squared windows."""
    hop, width, side = hop_length or n_fft // 4, win_length or n_fft, n_fft // 2
    spectrum = (input if input.dim() == 3 else input.unsqueeze(0)).mT
    norm = "ortho" if normalized else "backward"
    if return_complex:
        frames = torch.fft.ifft(spectrum, n_fft, norm=norm)
    else:
        frames = torch.fft.irfft(spectrum[..., : side + 1], n_fft, norm=norm)
    shape = torch.ones(width, device=input.device) if window is None else window
    shape = F.pad(shape, ((n_fft - width) // 2, n_fft - width - (n_fft - width) // 2))
    begin = side if center else 0
    weights = _overlapped((shape * shape).expand(1, frames.shape[1], n_fft), hop)
    y = (_overlapped(frames * shape, hop) / weights)[:, begin:]
    if length is not None:
        missing: Any = torch.sym_max(length - y.shape[1], 0)
        y = F.pad(y, (0, missing))[:, :length]
    elif center:
        y = y[:, :-side]
    return y if input.dim() == 3 else y.squeeze(0)


def _overlapped(frames: Tensor, hop: int) -> Tensor:
    """[B, T, N] -> [B, N + (T - 1) hop]: frame t is added at t * hop."""
    batch, count, width = frames.shape
    blocks = -(-width // hop)
    parts = F.pad(frames, (0, blocks * hop - width)).reshape(batch, count, blocks, hop)
    total = sum(F.pad(parts[:, :, k], (0, 0, k, blocks - 1 - k)) for k in range(blocks))
    assert isinstance(total, Tensor)
    return total.flatten(1)[:, : width + (count - 1) * hop]


_DEFINITIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.affine_grid: _affine_grid,
    torch.affine_grid_generator: _affine_grid,
    torch._C._nn.one_hot: _one_hot,  # pyright: ignore[reportAttributeAccessIssue]
    torch.triu_indices: _triangle(torch.triu),
    torch.tril_indices: _triangle(torch.tril),
    torch.kron: _kron,
    torch.take_along_dim: _take_along_dim,
    Tensor.take_along_dim: _take_along_dim,
    torch.vander: _vander,
    torch.hamming_window: _cosines(lambda alpha=0.54, beta=0.46: (alpha, beta)),
    torch.hann_window: _cosines(lambda: (0.5, 0.5)),
    torch.blackman_window: _cosines(lambda: (0.42, 0.5, 0.08)),
    torch.bartlett_window: _bartlett,
    torch.kaiser_window: _kaiser,
    torch.cov: _cov,
    Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    Tensor.corrcoef: _corrcoef,
    torch.linspace: _linspace,
    torch.logspace: _logspace,
    torch._C._nn.avg_pool2d: _pool(F.avg_pool2d, torch.mean),  # pyright: ignore[reportAttributeAccessIssue]
    F.max_pool2d: _pool(F.max_pool2d, torch.amax),
    torch.istft: _istft,
    Tensor.istft: _istft,
}
