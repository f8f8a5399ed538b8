"""The group of this process, which is joined at its first use."""

from __future__ import annotations

import hashlib
import os
import sys

from ingot.runtime.program import Program
from ingot.runtime.ranks.gloo import GlooGroup
from ingot.runtime.ranks.process_group import ProcessGroup, SingleProcess
from ingot.runtime.ranks.shared_memory import SharedMemoryGroup
from ingot.support.errors import DeviceError, InputError

RANK, WORLD_SIZE, CONTROL, TRANSPORT = "INGOT_RANK", "INGOT_WORLD_SIZE", "INGOT_CONTROL", "INGOT_TRANSPORT"
PLACE = "rank"  # key of a program's notes: "1 of 2"
_current: list[ProcessGroup] = []


def current() -> ProcessGroup:
    """This process's group: of `ingot.launch`, of torchrun or of an initialized torch.distributed; otherwise of this
    process alone. It is joined on the first call."""
    if not _current:
        _current.append(_join_launched())
    return _current[0]


def group_of(program: Program) -> ProcessGroup | None:
    """The group that runs a program's collectives; None if it has none. All ranks load their programs together.

    Raises DeviceError if the program is for another rank or another number of them, or if the ranks have programs with
    different collectives.
    """
    collectives = [step.collective for step in program.steps if step.collective is not None]
    if not collectives:
        return None
    group = current()
    place = program.meta.get(PLACE, "")
    expected = f"{group.rank} of {group.size}"
    if place and place != expected:
        raise DeviceError("a program of several", expected=f"that of rank {expected}", got=f"that of rank {place}")
    required_size = 1 + max(rank for collective in collectives for members in collective.groups for rank in members)
    if required_size != group.size:
        fix = "ingot.launch(function, processes), or torchrun"
        raise DeviceError(
            "a program of several", expected=f"a group of {required_size} processes", got=group.size, fix=fix
        )
    text = "; ".join(f"{c} {c.groups} {c.dtype}" for c in collectives)
    digests = group.gather(hashlib.blake2b(text.encode(), digest_size=16).digest())
    if other := [rank for rank, digest in enumerate(digests) if digest != digests[group.rank]]:
        got = f"others on rank {', '.join(map(str, other))}"
        raise DeviceError("a program of several", expected="the same collectives on each rank", got=got)
    return group


def leave(failed: bool = False) -> None:
    """Leave the group, if it was joined."""
    while _current:
        _current.pop().close(failed)


def is_launched() -> bool:
    """Whether this process is one of several."""
    torch = sys.modules.get("torch.distributed")
    is_torch = torch is not None and torch.is_available() and torch.is_initialized()
    return RANK in os.environ or is_torch or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def _join_launched() -> ProcessGroup:
    if not is_launched():
        return SingleProcess()
    transport = os.environ.get(TRANSPORT, "") or ("shared_memory" if CONTROL in os.environ else "gloo")
    if transport == "gloo":
        return GlooGroup()
    if transport == "shared_memory" and CONTROL in os.environ:
        return SharedMemoryGroup(os.environ[CONTROL], _number(RANK), _number(WORLD_SIZE))
    raise InputError(
        f"environment variable {TRANSPORT}", expected="shared_memory (of ingot.launch) or gloo", got=transport
    )


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise InputError(f"environment variable {name}", expected="a number", got=repr(text), fix="use ingot.launch")
    return int(text)
