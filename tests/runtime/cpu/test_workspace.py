"""Memory that models of one pool have in common: as much as the largest needs, borders written once, no leaks."""

import gc
import threading

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, const
from ingot.pipeline.build import build_program
from ingot.runtime.bind import Images, Layout
from ingot.runtime.cpu import memory
from ingot.runtime.cpu.workspace import Workspace
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import IngotError
from ingot.targets.cpu.workers import host_features
from tests.passes.check import arg
from tests.runtime import models


class User:
    pass


def images(halo: str, fill: int = 0, nbytes: int = 64) -> Images:
    return Images(halo, fill, nbytes, ())


def layout(plain: int, *groups: tuple[Images, int]) -> Layout:
    workspace = Layout.__new__(Layout)
    workspace.plain_bytes, workspace.images = plain, []
    at = plain
    for geometry, nbytes in groups:
        workspace.images.append((geometry, at, nbytes))
        at += nbytes
    return workspace


def content(space: Workspace, geometry: Images, nbytes: int = 64) -> bytes:
    return space.images.read(space.place(geometry) - space.images.address, nbytes)


def write(space: Workspace, geometry: Images, byte: int, nbytes: int = 64) -> None:
    space.images.fill(space.place(geometry) - space.images.address, nbytes, byte)


@pytest.fixture
def space() -> Workspace:
    return Workspace(threading.Lock())


X = np.ones(10000, np.float32)
A, B, C = images("a"), images("b", 7), images("c", 1)


def test_the_arena_is_as_large_as_the_largest_needs(space: Workspace):
    small, large = User(), User()
    space.use(small, layout(1000))
    space.use(large, layout(5000))
    before = space.version
    space.use(small, layout(1000))
    assert space.arena.nbytes == 5000 and space.version == before


def test_a_geometry_is_filled_once_and_shared(space: Workspace):
    one, two = User(), User()
    space.use(one, layout(0, (A, 64), (B, 128)))
    assert content(space, A) == bytes(64) and content(space, B, 128) == bytes([7]) * 128
    write(space, B, 9)
    before = space.version
    space.use(two, layout(0, (B, 64)))
    assert content(space, B) == bytes([9]) * 64 and space.version == before


def test_more_of_a_geometry_moves_all_to_fresh_memory(space: Workspace):
    one, two = User(), User()
    space.use(one, layout(0, (A, 64), (B, 64)))
    write(space, A, 9)
    before = space.version
    space.use(two, layout(0, (B, 192), (C, 64)))
    assert space.version > before and space.images.nbytes == 64 + 192 + 64
    assert content(space, A) == bytes(64) and content(space, B, 192) == bytes([7]) * 192
    assert content(space, C) == bytes([1]) * 64


def test_another_layout_of_one_user_takes_the_memory_of_the_last(space: Workspace):
    user = User()
    space.use(user, layout(0, (B, 256)))
    for geometry in (A, B, C) * 2:
        before = space.version
        space.use(user, layout(0, (geometry, 256)))
        assert content(space, geometry, 256) == bytes([geometry.fill]) * 256
        assert space.images.nbytes == 256
        assert (space.version > before) == (geometry is not B or before > 1)
        write(space, geometry, 9, 256)


def test_room_behind_the_others_moves_nobody(space: Workspace):
    one, two = User(), User()
    space.use(one, layout(0, (A, 512)))
    space.use(one, layout(0, (B, 128)))
    write(space, B, 9, 128)
    before = space.version
    space.use(two, layout(0, (C, 128)))
    assert space.version == before and content(space, C, 128) == bytes([1]) * 128
    assert content(space, B, 128) == bytes([9]) * 128


@pytest.mark.parametrize("busy", [False, True])
def test_what_a_user_needed_goes_with_it(space: Workspace, busy: bool):
    small, large = User(), User()
    space.use(small, layout(100, (A, 64)))
    space.use(large, layout(5000, (A, 64), (B, 1 << 16)))
    if busy:
        space._lock.acquire()
    before = space.version
    del large
    gc.collect()
    assert (space.arena.nbytes == 1) != busy and space.left == busy  # a run may be at it
    if busy:
        space._lock.release()
        space.shrink()
    space.use(small, layout(100, (A, 64)))
    assert space.version > before
    assert space.arena.nbytes == 100 and space.images.nbytes == 64


def test_one_that_there_is_no_memory_for_leaves_the_others_theirs(space: Workspace, monkeypatch: pytest.MonkeyPatch):
    one, two = User(), User()
    space.use(one, layout(100, (B, 64)))
    before = space.version

    region = memory.Region
    monkeypatch.setattr(memory, "Region", lambda nbytes: region(nbytes if nbytes < 1 << 20 else 1 << 60))
    for needs in (layout(1 << 21, (C, 64)), layout(10, (C, 1 << 21))):
        with pytest.raises(IngotError, match="out of memory"):
            space.use(two, needs)
        assert space.version > before
        space.use(one, layout(100, (B, 64)))
        assert space.arena.nbytes >= 100 and content(space, B) == bytes([7]) * 64


def windows(seed: int, channels: int) -> Graph:
    """Two convolutions with borders, of images of any size, in whole numbers."""
    rng = np.random.default_rng(seed)
    y = x = arg("x", 1, symbol("h"), symbol("w"), channels)
    convolution = ops.Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), "NHWC", "HWIO", "NHWC")
    for _ in range(2):
        y = convolution(y, const(rng.integers(-2, 3, (3, 3, channels, channels)).astype(np.float32)))
    return Graph((x,), (y,))


def workspace_of(model: CompiledModel) -> Workspace:
    return models.loaded(model)._contexts[0].pool.workspace


def test_what_a_model_needed_that_goes_during_a_run_of_another_goes_behind_it():
    small, large = (CompiledModel(models.dynamic(), threads=2) for _ in range(2))
    large(X, X)
    small(X[:9], X[:9])
    space = workspace_of(small)
    before = space.arena.nbytes
    mine = models.loaded(small).claim()
    del large
    gc.collect()
    assert space.arena.nbytes == before > 4 * len(X)
    mine.release()
    small(X[:9], X[:9])
    assert space.arena.nbytes < before


def test_models_in_turns_at_many_sizes():
    """Two of one geometry, one of another; the last of all begins when the first is gone."""
    graphs = [windows(0, 8), windows(1, 8), windows(2, 6), windows(3, 8)]
    compiled_models = [CompiledModel(build_program(g, host_features(), 2), threads=2) for g in graphs]
    space = workspace_of(compiled_models[0])
    rng = np.random.default_rng(4)
    for step in range(60):
        if step == 40:
            compiled_models[0] = compiled_models[3]
        which, (h, w) = int(rng.integers(3)), rng.choice([5, 8, 13], 2)
        x = rng.integers(-3, 4, (1, h, w, graphs[which].inputs[0].shape[3])).astype(np.float32)
        graph = graphs[3 if which == 0 and step >= 40 else which]
        (want,) = interpret(graph, [x])  # whole numbers, which Winograd's algorithm rounds
        np.testing.assert_allclose(compiled_models[which](x), want, rtol=0, atol=1e-2)
    assert any(layout.images for layout in space._users.values())
