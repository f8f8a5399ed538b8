"""A step of a program that calls a function of the host."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ingot.runtime import dtypes
from ingot.support.dataclass import dataclass
from ingot.support.errors import VerifyError

_MAX_RANK = 64  # of numpy's arrays


@dataclass(frozen=True)
class HostCall:
    """A function that the host has registered by name. operands, results: the dtype and the rank of each. attributes: a
    JSON object."""

    name: str
    operands: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, int], ...]
    attributes: str = "{}"

    @property
    def tensors(self) -> tuple[tuple[str, int], ...]:
        return (*self.operands, *self.results)

    def check(self, where: str, args: int, dims: int, is_once: bool) -> None:
        """Raise VerifyError unless the step's numbers of arguments and sizes match the tensors."""
        for dtype, rank in self.tensors:
            dtypes.itemsize(dtype)
            if not 0 <= rank <= _MAX_RANK:
                raise VerifyError(where, expected=f"tensors of rank 0 to {_MAX_RANK}", got=rank)
        ranks = sum(rank for _, rank in self.tensors)
        if (args, dims) != (len(self.tensors), ranks) or not is_once:
            raise VerifyError(where, expected=f"{len(self.tensors)} tensors and their {ranks} sizes", got=(args, dims))

    def tensor_bytes(self, sizes: Sequence[int | None]) -> list[int] | None:
        """The size in bytes of each tensor; None if one is not known yet."""
        if any(n is not None and n < 0 for n in sizes):
            raise VerifyError(f"a call of {self.name}", expected="sizes of 0 or more", got=sizes)
        nbytes: list[int] = []
        for dtype, rank in self.tensors:
            tensor_sizes, sizes = [n for n in sizes[:rank] if n is not None], sizes[rank:]
            if len(tensor_sizes) != rank:
                return None
            nbytes.append(dtypes.itemsize(dtype) * prod(tensor_sizes))
        return nbytes
