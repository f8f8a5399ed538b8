"""Groups of processes: exchanges through shared memory and gloo, and what a rank that ends does to the others."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ingot.runtime.program import Collective
from ingot.runtime.ranks.current import current, leave
from ingot.runtime.ranks.launch import launch
from ingot.runtime.ranks.process_group import ProcessGroup, SingleProcess, reduced
from ingot.runtime.ranks.shared_memory import SLOT_BYTES
from ingot.support.errors import ArtifactError, DeviceError, InputError

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "i8": np.int8, "bool": np.bool_}
# a part of a slot, more than one, none
COUNTS = (12, SLOT_BYTES // 4 * 3 // 12 * 12 + 24, 0)


def operand(rank: int, count: int, dtype: str) -> np.ndarray:
    values = np.random.default_rng(rank).integers(-3, 4, count)
    return (values > 0 if dtype == "bool" else values).astype(DTYPES[dtype])


def expected(collective: Collective, count: int, rank: int) -> np.ndarray:
    group = collective.group_of(rank)
    n, index = len(group), group.index(rank)
    xs = [operand(r, count, collective.dtype) for r in group]
    match collective.kind:
        case "all_reduce":
            return reduced(xs, collective.reduction)
        case "all_gather":
            return np.concatenate(xs)
        case "reduce_scatter":
            return np.split(reduced(xs, collective.reduction), n)[index]
        case "all_to_all":
            return np.concatenate([np.split(x, n)[index] for x in xs])
    return xs[(index - collective.shift) % n]


def collectives(groups: tuple[tuple[int, ...], ...]) -> list[Collective]:
    collective_ops = [Collective(kind, groups, dtype, *(("sum",) if "reduce" in kind else ("", 1)))  # type: ignore[arg-type]
            for kind in KINDS for dtype in DTYPES if not ("reduce" in kind and dtype == "bool")]  # fmt: skip
    return [*collective_ops, Collective("all_reduce", groups, "i8", "max")]


def exchanges(group: ProcessGroup, counts: tuple[int, ...] = COUNTS) -> int:
    done = 0
    everyone = tuple(range(group.size))
    pairs = ((0, 2), (3, 1)) if group.size == 4 else (everyone,)
    for groups in ((everyone,), pairs):
        for collective in collectives(groups):
            for count in counts:
                source = operand(group.rank, count, collective.dtype)
                target = np.zeros(collective.result_count(count), source.dtype)
                group.exchange(collective, source, target)
                np.testing.assert_array_equal(target, expected(collective, count, group.rank), str(collective))
                done += 1
    return done


def all_kinds() -> tuple[int, str]:
    return exchanges(current()), current().transport


def test_shared_memory() -> None:
    results = launch(all_kinds, 4, seconds=100)
    assert results == [(2 * 19 * 3, "shared_memory")] * 4


def through_gloo(folder: str) -> tuple[int, str]:
    import torch.distributed as dist

    os.environ["INGOT_TRANSPORT"] = "gloo"
    rank, size = int(os.environ["INGOT_RANK"]), int(os.environ["INGOT_WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    done = exchanges(current(), (12,))
    dist.destroy_process_group()
    return done, current().transport


def test_gloo(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert launch(through_gloo, 2, (str(tmp_path),), seconds=100) == [(2 * 19, "gloo")] * 2


def add_until(how: str) -> float:
    """Rank 1 ends in some way; how long rank 0 then waits."""
    group, x = current(), np.ones(4, np.float32)
    collective = Collective("all_reduce", ((0, 1),), "f32", "sum")
    for step in range(200):
        if group.rank == 1 and step == 5:
            match how:
                case "exit":
                    os._exit(7)
                case "raise":
                    raise ValueError("no more")
                case "leave":
                    return 0.0
                case "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "other":
                    x = np.ones(5, np.float32)
        group.exchange(collective, x, np.empty_like(x))
    return 0.0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exit", "rank 1 of 2 failed.*exit code 7"),
        ("raise", "rank 1 of 2 failed.*ValueError: no more"),
        ("leave", "rank 0 of 2 failed.*rank 1 has left"),
        ("stop", "rank 0 of 2 failed.*an answer of rank 1"),
        ("other", "runs another one, or on another size"),
    ],
)
def test_a_rank_that_ends_ends_the_others(how: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "stop":  # which only its silence tells; it has to start in this time
        monkeypatch.setenv("INGOT_COLLECTIVE_SECONDS", "8")
    with pytest.raises(DeviceError, match=f"(?s){message}"):
        launch(add_until, 2, (how,), seconds=60)


def sleep() -> None:
    time.sleep(60)


def test_processes_that_take_too_long_are_ended() -> None:
    with pytest.raises(DeviceError, match="an end within 2 s"):
        launch(sleep, 1, seconds=2)


@pytest.mark.parametrize(("processes", "gpus"), [(0, None), ("2", None), (2, [0])])
def test_launch_checks_its_arguments(processes: int, gpus: list[int] | None) -> None:
    with pytest.raises(InputError):
        launch(sleep, processes, gpus=gpus)


def test_a_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INGOT_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    leave()
    group = current()
    assert isinstance(group, SingleProcess) and group.gather(b"x") == [b"x"]
    x, y = np.arange(3, dtype=np.float32), np.empty(3, np.float32)
    group.exchange(Collective("all_reduce", ((0,),), "f32", "sum"), x, y)
    np.testing.assert_array_equal(x, y)
    with pytest.raises(DeviceError, match="one process"):
        group.exchange(Collective("all_reduce", ((0, 1),), "f32", "sum"), x, y)
    with pytest.raises(ArtifactError):
        group.exchange(Collective("all_reduce", ((1,),), "f32", "sum"), x, y)
    leave()
