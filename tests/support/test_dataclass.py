"""`dataclass` beside the standard library's: what it makes behaves the same."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from ingot.support.dataclass import dataclass


def _make(decorate: Any) -> dict[str, Any]:
    @decorate(frozen=True)
    class Point:
        name: ClassVar[str] = "point"
        x: int
        y: tuple[int, ...] = ()
        seen: list[int] = field(default_factory=list, compare=False, repr=False)

        def __post_init__(self) -> None:
            self.seen.append(self.x)

    @decorate(frozen=True)
    class Named(Point):
        label: str = field(default="", kw_only=True)
        size: int = field(default=3, init=False)

    @decorate(frozen=True, slots=True)
    class Slotted:
        a: float
        b: float = 2.0

        def total(self) -> float:
            return self.a + self.b

    @decorate()
    class Plain:
        values: dict[str, int] = field(default_factory=dict)
        made: list[int] = field(default_factory=lambda: [1], init=False)

    @decorate(frozen=True, eq=False)
    class Identity:
        x: int

    @decorate(frozen=True)
    class Special:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "special"

    @decorate(frozen=True)
    class Empty:
        pass

    return {c.__name__: c for c in (Point, Named, Slotted, Plain, Identity, Special, Empty)}


OURS, THEIRS = _make(dataclass), _make(dataclasses.dataclass)
CALLS = [
    ("Point", (1,), {}),
    ("Point", (1, (2,)), {}),
    ("Point", (1,), {"y": (3,), "seen": [4]}),
    ("Named", (1, (2,)), {"label": "l"}),
    ("Slotted", (1.0,), {}),
    ("Slotted", (), {"a": 1.0, "b": 5.0}),
    ("Plain", (), {}),
    ("Plain", ({"a": 1},), {}),
    ("Identity", (1,), {}),
    ("Special", (1,), {}),
    ("Empty", (), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_it_is_what_the_standard_library_makes(name: str, args: Any, kwargs: Any):
    def facts(cls: Any) -> list[object]:
        # each with its own lists
        one, other = (cls(*args, **{k: list(v) if isinstance(v, list) else v for k, v in kwargs.items()}) for _ in "ab")
        hashed = cls.__hash__ is not None
        return [
            repr(one).rsplit(".", 1)[-1], asdict(one), one == other, one != other, one == 1, cls.__match_args__,
            hashed, hashed and hash(one) == hash(other), [f.name for f in fields(cls)],
            asdict(replace(one)), hasattr(one, "__dict__"), cls.__dataclass_params__.frozen,
        ]  # fmt: skip

    assert facts(OURS[name]) == facts(THEIRS[name])


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [("Point", (), {}), ("Point", (1, (), [], 2), {}), ("Named", (1, (), [], "l"), {}), ("Named", (1,), {"size": 2}),
     ("Slotted", (1.0,), {"c": 1}), ("Empty", (1,), {}), ("Plain", (), {"made": [2]})],
)  # fmt: skip
def test_it_refuses_the_same_arguments(name: str, args: Any, kwargs: Any):
    for cls in (OURS, THEIRS):
        with pytest.raises(TypeError, match="__init__"):
            cls[name](*args, **kwargs)


def test_frozen_instances_stay_as_they_are():
    for name, attribute in (("Point", "x"), ("Named", "label"), ("Slotted", "a"), ("Empty", "new")):
        value = OURS[name](*([1] if name != "Empty" else []))
        with pytest.raises(FrozenInstanceError, match=attribute):
            setattr(value, attribute, 2)
        with pytest.raises(FrozenInstanceError):
            delattr(value, attribute)


def test_values_that_differ_in_a_field_or_in_class_differ():
    point, named = OURS["Point"], OURS["Named"]
    assert point(1) != point(2) and point(1) != named(1) and len({point(1), point(1), named(1)}) == 2
    assert point(1).seen == [1] and point(1).seen is not point(1).seen


def test_patterns_and_methods_of_slotted_classes():
    match OURS["Slotted"](1.0, 2.5):
        case OURS_ if isinstance(OURS_, OURS["Slotted"]):
            assert OURS_.total() == 3.5
    Point = OURS["Point"]
    match Point(1, (2,)):
        case Point(x, (y,)):
            assert (x, y) == (1, 2)


def test_both_kinds_are_each_others_bases():
    for first, second in ((dataclass, dataclasses.dataclass), (dataclasses.dataclass, dataclass)):

        @first(frozen=True)
        class Base:
            a: int

        @second(frozen=True)
        class Derived(Base):
            b: int = 2

        assert Derived(1) == Derived(1, 2) and hash(Derived(1)) == hash(Derived(1))
        assert repr(Derived(1)).endswith("Derived(a=1, b=2)") and Base(1) != Derived(1)
        with pytest.raises(TypeError, match="frozen"):

            @second()  # pyright: ignore[reportGeneralTypeIssues]
            class _Written(Base):
                c: int = 3


def test_a_base_that_is_met_first_leaves_its_classes_their_own_methods():
    @dataclass(frozen=True)
    class Base:
        a: int

    @dataclass(frozen=True)
    class Derived(Base):
        b: int

    assert Base(1) == Base(1) and hash(Base(1)) is not None
    assert Derived(1, 2) == Derived(1, 2) != Derived(1, 3)
    assert super(Derived, Derived(1, 2)).__hash__() == hash((1,))


def test_classes_cost_no_compiling_until_they_are_called():
    program = """
import builtins
compiled = []
inner = builtins.exec
builtins.exec = lambda text, *rest: (compiled.append(text), inner(text, *rest))
from ingot.support.dataclass import dataclass
compiled.clear()
class A: a: int
class B: a: int
A, B = dataclass(A, frozen=True), dataclass(B, frozen=True)
none = len(compiled)
A(1), B(2), A(1) == A(2)
print(none, len(compiled))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["0", "2"]
