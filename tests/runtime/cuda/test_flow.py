"""Jumps as loops and branches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingot.runtime.cuda.flow import Branch, Loop, SizeRead, fits, flow, pieces, sized, unrolled
from ingot.runtime.program import Step
from ingot.support.errors import ArtifactError
from tests.runtime.cuda.programs import branching, first_of_positive, nested_loops, until_100


def test_jumps_become_loops_and_branches() -> None:
    assert flow(until_100()) == (0, Loop(2, None, (1,), (3,)))
    assert flow(nested_loops(3)) == (0, Loop(2, 3, (1,), (Loop(4, 2, (3,), (5,)),)))
    assert flow(first_of_positive()) == (0, 1, SizeRead(2), 3, 4)
    inner = Branch(8, (9,), ())
    assert flow(branching()) == (0, Branch(1, (2, Loop(4, None, (3,), (5,)), 7, inner), (11, 12)))


@pytest.mark.parametrize("target", [0, 1, 2, 4])
def test_other_jumps_are_refused(target: int) -> None:
    """A file may have any."""
    program = until_100()
    steps = (*program.steps[:2], replace(program.steps[2], target=target), *program.steps[3:])
    if target == 4:  # the jump back is a step of the branch then
        steps = (*steps[:4], replace(steps[4], target=3))
    with pytest.raises(ArtifactError, match="loops and branches"):
        flow(replace(program, steps=steps))
    into = Step("", (), label="jump", target=3)
    with pytest.raises(ArtifactError, match="loops and branches"):
        flow(replace(program, steps=(into, *program.steps[1:])))


def test_what_a_graph_holds_follows_from_the_driver() -> None:
    program = branching()
    items, segments = flow(program), sized(program)

    def is_capturable(version: int) -> int:
        return len(pieces(items, lambda item: fits(item, version, segments)))

    assert [is_capturable(version) for version in (12080, 12040, 12000)] == [1, 2, 2]
    loop, result = Loop(2, None, (1,), (Branch(3, (4,), ()),)), Loop(2, None, (1,), (SizeRead(3),))
    for segment_items, version, expected in ((loop, 12040, True), (loop, 12030, False), (result, 13000, False)):
        assert fits(segment_items, version, [False] * 5) is expected
    assert not fits(loop, 13000, [False] * 4 + [True]), "what the host tells is not in a node"
    assert fits(loop.body[0], 12040, [False] * 5)


def test_loops_of_known_turns_are_their_bodies() -> None:
    """With the sizes in them, which the host reads without asking whether the loop goes on."""
    inner, endless = Loop(5, 2, (4,), (6,)), Loop(9, None, (8,), (10,))
    items = (0, Loop(2, 2, (1,), (SizeRead(3), inner)), Branch(7, (inner,), (endless,)))
    assert unrolled(items, lambda loop: None if loop.trip_count is None else 2) == (
        0, *(SizeRead(3), 6, 6) * 2, Branch(7, (6, 6), (endless,))
    )  # fmt: skip
    assert unrolled(items[:2], lambda loop: 0) == (0,)
    assert unrolled(items, lambda loop: None) == items
