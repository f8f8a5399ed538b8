"""State with shared memory: tensors of a module that overlap in memory become views of one buffer while torch traces.

    m = buffer [4, 6], top = buffer m[:2], forward writes top    ->    top is m.as_strided((2, 6), (6, 1), 0)

torch.export takes each buffer for a separate tensor, and does not see what a write through one alias does to another.
Tensors that forward writes and that are no buffers become buffers in the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ingot.frontends.torch.tracing.inplace import written_inputs
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

_STATE_KINDS = (InputKind.BUFFER, InputKind.PARAMETER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class _Member:
    """A tensor that is an attribute of a module: an entry of its dictionary `place`."""

    holder: nn.Module
    place: dict[str, Any]
    name: str
    path: str
    tensor: Tensor

    @property
    def span(self) -> tuple[int, int]:
        """The range [first, end) of elements of its storage that it may cover."""
        t = self.tensor
        first = int(t.storage_offset())
        last = first + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
        return first, (last + 1 if t.numel() else first)


@dataclass(frozen=True)
class Memory:
    """The buffer `owner`, of which `views` are views."""

    owner: _Member
    views: tuple[_Member, ...]

    def view(self, base: Tensor, member: _Member) -> Tensor:
        t = member.tensor
        return base.as_strided(t.shape, t.stride(), t.storage_offset() - self.owner.span[0])


def written_memories(net: nn.Module, program: ExportedProgram) -> list[Memory]:
    """The memories of `net` that `program`, traced from it, writes, except those of a single buffer."""
    signature, written_nodes = program.graph_signature, written_inputs(program.graph)
    specs = [s for s in signature.input_specs if s.kind in _STATE_KINDS and s.arg.name in written_nodes and s.target]
    tensors = (program.state_dict.get(str(s.target), program.constants.get(str(s.target))) for s in specs)
    places = {t.untyped_storage().data_ptr() for t in tensors if isinstance(t, Tensor)}
    members = [m for m in _members(net) if m.tensor.untyped_storage().data_ptr() in places] if places else []
    memories = [_memory(net, group) for group in _overlapping(members)]
    return [m for m in memories if m.views or m.owner.place is m.owner.holder.__dict__]


def _members(net: nn.Module) -> Iterator[_Member]:
    for path, module in net.named_modules():
        for attributes in (module._parameters, module._buffers, module.__dict__):
            for name, tensor in attributes.items():
                if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                    yield _Member(module, attributes, name, f"{path}.{name}" if path else name, tensor)


def _overlapping(members: Sequence[_Member]) -> list[list[_Member]]:
    """Groups of members whose spans of one storage overlap, directly or through others."""

    def start(m: _Member) -> tuple[int, int]:
        return m.tensor.untyped_storage().data_ptr(), m.span[0]

    groups: list[list[_Member]] = []
    end = 0
    for m in sorted(members, key=start):
        if groups and start(groups[-1][0])[0] == start(m)[0] and m.span[0] < end:
            groups[-1].append(m)
            end = max(end, m.span[1])
        else:
            groups.append([m])
            end = m.span[1]
    return groups


def _memory(net: nn.Module, group: Sequence[_Member]) -> Memory:
    """The owner is the member that covers all elements contiguously, else a new buffer that is a vector of them."""
    low, high = min(m.span[0] for m in group), max(m.span[1] for m in group)
    types = {m.tensor.dtype for m in group}
    if len(types) > 1:
        raise ImportModelError(
            f"the state {', '.join(m.path for m in group)}",
            expected="tensors of one type in one memory",
            got=", ".join(sorted(map(str, types))),
            fix="give each its own memory (.clone())",
        )
    covering = [m for m in group if m.span == (low, high) and m.tensor.is_contiguous()]
    if covering:
        return Memory(covering[0], tuple(m for m in group if m is not covering[0]))
    name = "_and_".join(m.path.replace(".", "_") for m in group)
    with torch.no_grad():
        flat = group[0].tensor.detach().as_strided((high - low,), (1,), low)
    return Memory(_Member(net, net._buffers, name, name, flat), tuple(group))


@contextmanager
def shared_views(net: nn.Module, memories: Sequence[Memory]) -> Iterator[None]:
    """Within the block, the owners are buffers and forward sees the other members as views of them."""
    views = [m for memory in memories for m in memory.views]
    originals = [(place, dict(place)) for place in _places(net)]
    forward = net.forward
    for m in views:
        del m.place[m.name]
    for owner in (m.owner for m in memories):
        # a program's views have offsets from the start of the memory
        base = owner.tensor if owner.tensor.storage_offset() == 0 else owner.tensor.detach().clone()
        if owner.place is owner.holder._parameters:
            owner.place[owner.name] = nn.Parameter(base, requires_grad=False)
        else:
            if owner.place is owner.holder.__dict__:
                del owner.place[owner.name]
            owner.holder._buffers[owner.name] = base
    net.forward = _with_views(forward, memories)
    try:
        yield
    finally:
        for place, content in originals:
            place.clear()
            place.update(content)


def _places(net: nn.Module) -> list[dict[str, Any]]:
    return [
        attributes for module in net.modules() for attributes in (module.__dict__, module._parameters, module._buffers)
    ]


def _with_views(forward: Callable[..., Any], memories: Sequence[Memory]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        views: list[tuple[_Member, Tensor]] = []
        for memory in memories:
            base = getattr(memory.owner.holder, memory.owner.name)
            views += [(m, memory.view(base, m)) for m in memory.views]
        for m, view in views:
            m.place[m.name] = view
        try:
            result = forward(*args, **kwargs)
            for m, view in views:
                if m.place.get(m.name) is not view:
                    fix = f"write into it: self.{m.name}.copy_(...)"
                    raise ImportModelError(f"{m.path} is a view of other state, and forward exchanges it", fix=fix)
        finally:
            for m, _ in views:
                m.place.pop(m.name, None)
        return result

    return call
