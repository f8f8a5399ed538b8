"""Meshes of devices, and specs of tensors split over them.

Mesh((("dp", 2), ("tp", 4)))       8 devices; rank = 4 * (index along dp) + index along tp
Spec ((), ("tp",))                 a matrix whose columns are split over tp
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import permutations, product
from math import prod
from typing import Any, TypeAlias

from ingot.ops import Sharding
from ingot.ops.core.collective import Groups
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

Axes: TypeAlias = tuple[str, ...]
Spec: TypeAlias = tuple[Axes, ...]  # for each dimension the mesh axes that split it, the outermost first
Mark: TypeAlias = tuple[str, int]  # a mesh axis, and the dimension that it splits
# by patterns of names; None: whole on each device. Any: placements of DTensor, one for each dimension of the mesh
Marks: TypeAlias = Mapping[str, "Mark | Sequence[Mark] | Sequence[Any] | None"]
_PLACEMENTS = "Shard", "Replicate", "Partial", "_StridedShard"
_MAX_DEVICES = 1 << 16


@dataclass(frozen=True)
class Mesh:
    """Devices in a grid with named axes. Ranks count row by row: the last axis varies fastest."""

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        sizes = [size for _, size in self.axes]
        is_valid = all(isinstance(n, str) and n for n in names) and all(type(s) is int and s >= 1 for s in sizes)
        if not is_valid or len({*names}) != len(names) or not 1 <= prod(sizes) <= _MAX_DEVICES:
            expected = 'a size of 1 or more for each axis: {"dp": 2, "tp": 4}'
            raise InputError("mesh", expected=expected, got=dict(self.axes))

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(size for _, size in self.axes)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(self.axes)

    def count(self, axes: Axes) -> int:
        """The number of parts into which `axes` split a dimension."""
        return prod(self._sizes[name] for name in axes)

    def index(self, rank: int, axes: Axes) -> int:
        """The part that device `rank` has of a dimension that `axes` split."""
        position: dict[str, int] = {}
        for name, size in reversed(self.axes):
            rank, position[name] = divmod(rank, size)
        index = 0
        for name in axes:
            index = index * self._sizes[name] + position[name]
        return index

    def groups(self, axes: Axes) -> Groups:
        """The groups of devices that differ along `axes` only, each in the order of its parts."""
        rows: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for rank, position in enumerate(product(*(range(size) for _, size in self.axes))):
            fixed = tuple(p for p, (name, _) in zip(position, self.axes, strict=True) if name not in axes)
            rows.setdefault(fixed, []).append((self.index(rank, axes), rank))
        return tuple(tuple(rank for _, rank in sorted(row)) for row in rows.values())

    def check_axis(self, name: object) -> str:
        if not isinstance(name, str) or name not in self._sizes:
            raise InputError("shard", expected=f"a mesh axis: one of {', '.join(self._sizes)}", got=repr(name))
        return name


def mesh_of(mesh: Any) -> Mesh:
    """Raises InputError unless it is a mesh, a mapping from names of axes to sizes, or PyTorch's `DeviceMesh` of named
    dimensions and ranks in order."""
    if isinstance(mesh, Mesh):
        return mesh
    if _is_torch(mesh, "DeviceMesh"):
        names, ranks = mesh.mesh_dim_names, mesh.mesh.flatten().tolist()
        if names is None or ranks != list(range(len(ranks))):
            expected = "named dimensions, and ranks that count row by row"
            raise InputError("a DeviceMesh", expected=expected, got=f"{names}, {ranks}")
        return Mesh(tuple(zip(names, mesh.mesh.shape, strict=True)))
    if not isinstance(mesh, Mapping) or not mesh:
        raise InputError("mesh", expected='sizes by axis: {"dp": 2, "tp": 4}', got=repr(mesh))
    return Mesh(tuple(mesh.items()))


class MarkTable:
    """The marks of a request. `unused_marks` lists patterns that no name matched."""

    def __init__(self, marks: Marks | None, mesh: Mesh) -> None:
        self._mesh = mesh
        self._marks = {pattern: self._checked(pattern, mark) for pattern, mark in (marks or {}).items()}
        self._used: set[str] = set()

    def _checked(self, pattern: str, mark: object) -> tuple[Mark, ...]:
        if not isinstance(pattern, str):
            raise InputError("shard", expected="patterns of names of weights, inputs and outputs", got=repr(pattern))
        if mark is None:
            return ()
        if (placements := _marks_of_placements(pattern, mark, self._mesh)) is not None:
            return tuple(placements)
        marks = [mark] if isinstance(mark, tuple) and len(mark) == 2 and isinstance(mark[0], str) else mark
        if not isinstance(marks, list | tuple):
            raise InputError(f"shard {pattern!r}", expected='("tp", 0), several of these, or None', got=repr(mark))
        for axis_and_dim in marks:
            if not isinstance(axis_and_dim, tuple) or len(axis_and_dim) != 2 or type(axis_and_dim[1]) is not int:
                raise InputError(
                    f"shard {pattern!r}", expected='("tp", 0): a mesh axis and a dimension', got=repr(axis_and_dim)
                )
            self._mesh.check_axis(axis_and_dim[0])
        return tuple(marks)

    def spec(self, name: str, rank: int) -> Spec | None:
        """How the tensor of this name is split; None if no pattern matches. The first pattern that matches counts."""
        for pattern, marks in self._marks.items():
            if not fnmatchcase(name, pattern):
                continue
            self._used.add(pattern)
            spec: list[Axes] = [()] * rank
            for axis, dim in marks:
                where = f"shard {pattern!r}: {name!r}"
                if not -rank <= dim < rank:
                    raise InputError(where, expected=f"one of its {rank} dimensions", got=dim)
                if any(axis in axes for axes in spec):
                    raise InputError(where, expected="each mesh axis once", got=axis)
                spec[dim % rank] += (axis,)
            # an axis of size 1 does not split
            return tuple(tuple(a for a in axes if self._mesh.count((a,)) > 1) for axes in spec)
        return None

    @property
    def unused_marks(self) -> list[str]:
        return [pattern for pattern in self._marks if pattern not in self._used]


def _is_torch(value: object, name: str) -> bool:
    """Whether an object is of this class of torch.distributed, which is not imported for the test."""
    kind = type(value)
    return kind.__name__ == name and kind.__module__.startswith("torch.")


def _marks_of_placements(pattern: str, placements: Any, mesh: Mesh) -> list[Mark] | None:
    """The marks equivalent to DTensor's placements, one for each dimension of the mesh; None for anything else. Raises
    InputError for partial placements, as weights and inputs are never partial sums."""
    placement_list = list(placements) if isinstance(placements, list | tuple) else [placements]
    kinds = [next((k for k in _PLACEMENTS if _is_torch(p, k)), None) for p in placement_list]
    if not any(kinds):
        return None
    if len(placement_list) != len(mesh.axes) or not all(k in ("Shard", "Replicate") for k in kinds):
        expected = f"Shard(dim) or Replicate() for each of {', '.join(name for name, _ in mesh.axes)}"
        raise InputError(f"shard {pattern!r}", expected=expected, got=placement_list)
    return [(name, p.dim) for (name, _), p, k in zip(mesh.axes, placement_list, kinds, strict=True) if k == "Shard"]


def annotated_spec(op: Sharding, rank: int, mesh: Mesh) -> Spec:
    """The spec of an annotation on a mesh. Raises InputError for axes that the mesh lacks, and for tiles that match no
    axes."""
    if not op.tiles:
        for axes in op.axes:
            for name in axes:
                mesh.check_axis(name)
        return tuple(tuple(a for a in axes if mesh.count((a,)) > 1) for axes in op.axes)
    if len(op.ranks) != mesh.size:
        raise InputError("the model's shardings", expected=f"those of {mesh.size} devices", got=len(op.ranks))
    tile_of: dict[int, tuple[int, ...]] = {}
    for position, device in zip(product(*map(range, op.tiles)), op.ranks, strict=True):
        tile_of[device] = position
    return tuple(_axes_of(d, [tile_of[device][d] for device in range(mesh.size)], op, mesh) for d in range(rank))


def _axes_of(dim: int, part_of_rank: Sequence[int], op: Sharding, mesh: Mesh) -> Axes:
    """The axes that split a dimension so that device i has part index[i]."""
    names = [name for name, size in mesh.axes if size > 1]
    for count in range(len(names) + 1):
        for axes in permutations(names, count):
            is_split = mesh.count(axes) == op.tiles[dim]
            if is_split and all(mesh.index(rank, axes) == i for rank, i in enumerate(part_of_rank)):
                return axes
    expected = f"parts along axes of the mesh {dict(mesh.axes)}"
    raise InputError("the model's shardings", expected=expected, got=f"{op.tiles} of {op.ranks}")


def unsplit(rank: int) -> Spec:
    """The spec of a tensor that is replicated on each device."""
    return ((),) * rank


def axes_in(spec: Spec) -> frozenset[str]:
    """The mesh axes that split the tensor."""
    return frozenset(axis for axes in spec for axis in axes)


def show_spec(spec: Spec) -> str:
    return f"[{', '.join('*'.join(axes) or '-' for axes in spec)}]"
