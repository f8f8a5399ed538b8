"""`dataclass` as in the standard library, but cheap to define: methods are compiled when they are first called, and
methods of equal text are shared.

    @dataclass(frozen=True)        the standard library compiles six methods of each class: 0.4 ms, for the hundreds of
    class Sum: axes: Ints          classes of a compiler more than compiling a small model takes

Fields, slots, `replace`, `fields`, `asdict` and patterns are the standard library's, and classes of both kinds can
inherit from each other. Not supported: `order`, `InitVar`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses
    from dataclasses import MISSING, FrozenInstanceError, fields
    from functools import cache, partial
    from reprlib import recursive_repr
    from types import FunctionType

    def dataclass(cls=None, /, *, frozen=False, eq=True, slots=False):
        if cls is None:
            return partial(dataclass, frozen=frozen, eq=eq, slots=slots)
        own_names = frozenset(cls.__dict__)
        cls.__doc__ = cls.__doc__ or cls.__name__  # the default, from the signature, is as slow as a method
        cls = _with_fields(cls, frozen, slots)
        methods = {"__init__": partial(_later, "__init__", _init), "__repr__": lambda _: _repr}
        if frozen:
            methods |= {"__setattr__": lambda _: _refuse, "__delattr__": lambda _: _refuse}
        if eq:
            methods["__eq__"] = partial(_later, "__eq__", _eq)
            hashed = partial(_later, "__hash__", _hash) if frozen else lambda _: None
            if "__hash__" not in own_names or ("__eq__" in own_names and cls.__hash__ is None):
                methods["__hash__"] = hashed
        for name, method in methods.items():
            if name not in own_names or name == "__hash__":
                setattr(cls, name, method(cls))
        return cls

    def _with_fields(cls, frozen, slots):
        """Define the fields without compiling anything: to the standard library the class is not frozen, and so its
        bases must not appear frozen either."""
        bases = [b.__dataclass_params__ for b in cls.__mro__[1:] if "__dataclass_params__" in b.__dict__]
        were = [b.frozen for b in bases]
        if were and frozen != any(were):
            raise TypeError(f"{cls.__name__}: frozen and other dataclasses cannot be each other's bases")
        try:
            for b in bases:
                b.frozen = False
            cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots)
        finally:
            for b, was in zip(bases, were, strict=True):
                b.frozen = was
        cls.__dataclass_params__.frozen = frozen
        return cls

    def _later(name, build, cls):
        """A method that replaces itself by the one that `build` returns. Two threads may do so: they write the same."""

        def first(self, *args, **kwargs):
            if cls.__dict__.get(name) is first:
                setattr(cls, name, build(cls))
            return getattr(cls, name)(self, *args, **kwargs)

        return first

    @cache
    def _code(text):
        namespace = {}
        exec(text, namespace)
        (function,) = (f for f in namespace.values() if isinstance(f, FunctionType))
        return function.__code__

    def _init(cls):
        factories = {f.name: f.default_factory for f in fields(cls) if f.default_factory is not MISSING}
        defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING} | dict.fromkeys(
            factories, MISSING
        )
        positional = [f.name for f in fields(cls) if f.init and not f.kw_only]
        keyword_only = [f.name for f in fields(cls) if f.init and f.kw_only]
        lines = []
        for f in fields(cls):
            value = f.name
            if f.name in factories:
                value = f"make_{f.name}() if {f.name} is MISSING else {f.name}" if f.init else f"make_{f.name}()"
            if f.init or f.name in factories:
                is_frozen = cls.__dataclass_params__.frozen
                lines.append(f"set_(self, '{f.name}', {value})" if is_frozen else f"self.{f.name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        signature = ", ".join(["self", *positional, *(["*", *keyword_only] if keyword_only else [])])
        code = _code(f"def __init__({signature}):\n    " + "\n    ".join(lines or ["pass"]))
        names = {"set_": object.__setattr__, "MISSING": MISSING} | {f"make_{k}": v for k, v in factories.items()}
        function = FunctionType(code, names, "__init__", tuple(defaults[n] for n in positional if n in defaults))
        function.__kwdefaults__ = {n: defaults[n] for n in keyword_only if n in defaults}
        return function

    def _tuple(of, names):
        return "(" + "".join(f"{of}.{n}, " for n in names) + ")"

    def _eq(cls):
        names = [f.name for f in fields(cls) if f.compare]
        body = f"return {_tuple('self', names)} == {_tuple('other', names)}"
        text = f"def __eq__(self, other):\n  if other.__class__ is self.__class__:\n    {body}\n  return NotImplemented"
        return FunctionType(_code(text), {}, "__eq__")

    def _hash(cls):
        names = [f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)]
        return FunctionType(_code(f"def __hash__(self):\n  return hash({_tuple('self', names)})"), {}, "__hash__")

    @recursive_repr()
    def _repr(self):
        parts = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"{self.__class__.__qualname__}({', '.join(parts)})"

    def _refuse(self, name, *value):
        raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
