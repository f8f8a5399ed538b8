"""Exchanges on the host by torch.distributed: started by torchrun, or initialized by the program itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.runtime.program import Collective
from ingot.runtime.ranks.process_group import ProcessGroup, reduced
from ingot.support.errors import DeviceError


class GlooGroup(ProcessGroup):
    """The ranks of torch.distributed. Values travel as bytes through the backend gloo, whatever the default backend."""

    transport = "gloo"

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self._owns_group = not dist.is_initialized()
        if self._owns_group:
            dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._groups: dict[tuple[tuple[int, ...], ...], Any] = {}

    def _group(self, collective: Collective) -> Any:
        """Every rank makes every group, in one order."""
        if collective.groups not in self._groups:
            groups = {group: self._dist.new_group(list(group), backend="gloo") for group in collective.groups}
            self._groups[collective.groups] = groups[collective.group_of(self.rank)]
        return self._groups[collective.groups]

    def exchange(self, collective: Collective, source: np.ndarray, target: np.ndarray) -> None:
        members = collective.group_of(self.rank)
        # the groups of a program are made by all ranks when it is loaded
        group = self._group(collective) if len(collective.groups) * len(members) == self.size else self._part(members)
        count, index = len(members), members.index(self.rank)
        data = self._torch.from_numpy(np.ascontiguousarray(source).view(np.uint8).copy())
        received = [self._torch.empty_like(data) for _ in range(count)]
        try:
            self._dist.all_gather(received, data, group=group)
        except RuntimeError as error:
            raise DeviceError("a collective", expected="all ranks at work", got=str(error)) from error
        parts = [r.numpy().view(source.dtype) for r in received]
        match collective.kind:
            case "all_reduce":
                target[:] = reduced(parts, collective.reduction)
            case "all_gather":
                target[:] = np.concatenate(parts)
            case "reduce_scatter":
                target[:] = reduced([np.split(p, count)[index] for p in parts], collective.reduction)
            case "all_to_all":
                target[:] = np.concatenate([np.split(p, count)[index] for p in parts])
            case "collective_permute":
                target[:] = parts[(index - collective.shift) % count]

    def _part(self, members: tuple[int, ...]) -> Any:
        if members == tuple(range(self.size)):
            return None
        key = (members,)
        if key not in self._groups:
            self._groups[key] = self._dist.new_group(list(members), backend="gloo", use_local_synchronization=True)
        return self._groups[key]

    def close(self, failed: bool = False) -> None:
        if self._owns_group and self._dist.is_initialized():
            self._dist.destroy_process_group()
