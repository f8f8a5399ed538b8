"""`ingot.register_op`: what an op of the user's means, and its names in the frontends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ingot.ops import custom
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


def register(
    name: str, infer: Callable[..., Any], reference: Callable[..., Any], lower: Callable[..., Any], names: Names,
    samples: Sequence[Sequence[Any]], sample_attributes: Mapping[str, Any],
) -> None:  # fmt: skip
    """See `ingot.register_op`. What was registered before stays if this fails."""
    if not isinstance(name, str) or not name:
        raise InputError("register_op", expected="a name", got=repr(name))
    for rule, function in {"infer": infer, "reference": reference, "lower": lower}.items():
        if not callable(function):
            raise InputError(f"{name}: {rule}", expected="a function", got=type(function).__name__)
    registration = custom.Registration(name, infer, reference, lower)
    with custom.unchanged_on_error():
        custom.register(registration, names.by_frontend(name))
        for sample in samples:
            custom.check_sample(registration, sample, sample_attributes)
    if names.jax is not None and not isinstance(names.jax, str):
        from ingot.frontends.jax.primitives import lower_to_call

        lower_to_call(names.jax, name)


def _torch_name(text: str) -> str:
    """ "library::op" -> "library.op.default"."""
    library, colons, op = text.partition("::")
    if not (library and colons and op):
        raise InputError("torch", expected="library::op, as in torch.library", got=repr(text))
    return f"{library}.{op}" if "." in op else f"{library}.{op}.default"
