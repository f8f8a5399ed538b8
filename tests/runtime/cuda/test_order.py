"""Which launches come before which: all that has to, and nothing that another already tells."""

from __future__ import annotations

import random

from ingot.runtime.cuda.order import Access, Order


def test_branches_meet() -> None:
    order = Order()
    x, y, z = (Access(0, 64 * i, 64 * i + 64, writes=True) for i in range(3))

    def read(a: Access) -> Access:
        return Access(a.memory, a.start, a.end, writes=False)

    assert order.next([x]) == []
    assert order.next([read(x), y]) == [0]
    assert order.next([read(x), z]) == [0]
    assert sorted(order.next([read(y), read(z)])) == [1, 2]
    assert sorted(order.next([x])) == [1, 2]  # over what both have read, which is behind the first
    assert order.next([Access(1, 0, 64, writes=True)]) == []  # another memory


def test_what_an_order_says_of_random_launches() -> None:
    """Two that meet in a byte that one of them writes are in their order, and what is told is never told twice."""
    rng = random.Random(0)
    for _ in range(60):
        order, launches, before = Order(), list[list[Access]](), list[set[int]]()
        for number in range(25):
            accesses: list[Access] = []
            for _ in range(rng.randint(0, 4)):
                start = rng.randrange(40)
                accesses.append(Access(rng.randrange(2), start, start + rng.randint(0, 12), rng.random() < 0.4))
            facts = order.next(accesses)
            reach = set(facts).union(*(before[i] for i in facts))
            assert all(not any(i in before[j] for j in facts) for i in facts)
            for other, theirs in enumerate(launches):
                overlaps = any(
                    a.memory == b.memory and max(a.start, b.start) < min(a.end, b.end) and (a.writes or b.writes)
                    for a in accesses
                    for b in theirs
                )
                assert not overlaps or other in reach, (number, other)
            before.append(reach)
            launches.append(accesses)
