"""`ingot.register_op`: what an op of the user's means, and its names in the frontends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ingot.ops import custom
from ingot.runtime.cpu.host_functions import FUNCTIONS, HostFunction, of_c, of_python
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError


@dataclass(frozen=True)
class Names:
    """See `ingot.register_op`."""

    torch: str | None
    onnx: str | tuple[str, str] | None
    jax: Any

    def by_frontend(self, name: str) -> dict[str, str]:
        names: dict[str, str] = {}
        if self.torch is not None:
            names["torch"] = _torch_name(self.torch)
        if self.onnx is not None:
            domain, op_type = self.onnx if isinstance(self.onnx, tuple) else ("", self.onnx)
            names["onnx"] = f"{domain}::{op_type}"
        if self.jax is not None:
            names["stablehlo"] = self.jax if isinstance(self.jax, str) else name
        return names


@dataclass(frozen=True)
class Body:
    """What computes an op: one of these, see `ingot.register_op`."""

    lower: Callable[..., Any] | None
    host: Callable[..., Any] | None
    c: Any

    def check(self, name: str) -> None:
        rules = {rule: f for rule, f in vars(self).items() if f is not None}
        if len(rules) != 1:
            raise InputError(f"{name}", expected="one of lower, host and c", got=", ".join(rules) or "none")

    def host_function(self, name: str) -> HostFunction | None:
        if self.c is not None:
            return of_c(self.c)
        return None if self.host is None else of_python(name, self.host)


def register(
    name: str, infer: Callable[..., Any], reference: Callable[..., Any], body: Body, names: Names,
    samples: Sequence[Sequence[Any]], sample_attributes: Mapping[str, Any],
) -> None:  # fmt: skip
    """See `ingot.register_op`. What was registered before stays if this fails."""
    if not isinstance(name, str) or not name:
        raise InputError("register_op", expected="a name", got=repr(name))
    body.check(name)
    for rule, function in {"infer": infer, "reference": reference, **vars(body)}.items():
        if function is not None and not callable(function):
            raise InputError(f"{name}: {rule}", expected="a function", got=type(function).__name__)
    registration = custom.Registration(name, infer, reference, body.lower)
    host = body.host_function(name)
    with custom.unchanged_on_error():
        custom.register(registration, names.by_frontend(name))
        for sample in samples:
            custom.check_sample(registration, sample, sample_attributes, host)
    FUNCTIONS.pop(name, None)
    if host is not None:
        FUNCTIONS[name] = host
    if names.jax is not None and not isinstance(names.jax, str):
        from ingot.frontends.jax.primitives import lower_to_call

        lower_to_call(names.jax, name)


def _torch_name(text: str) -> str:
    """ "library::op" -> "library.op.default"."""
    library, colons, op = text.partition("::")
    if not (library and colons and op):
        raise InputError("torch", expected="library::op, as in torch.library", got=repr(text))
    return f"{library}.{op}" if "." in op else f"{library}.{op}.default"
