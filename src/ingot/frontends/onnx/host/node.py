"""One node that runs on the host, and the table of such ops.

    @host_op("StringConcat", string_results={0})
    def string_concat(n: HostNode, a: np.ndarray, b: np.ndarray) -> np.ndarray: ...

Strings are arrays of `object` that hold `str`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from ingot.frontends.onnx.call import attribute_value
from ingot.frontends.onnx.protos import NodeProto, TensorProto
from ingot.frontends.onnx.tensors import ExternalData, dtype_from_code
from ingot.frontends.shared.refusal import Unsupported
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

_STRING = TensorProto.STRING


class Kind(Enum):
    """When an op runs on the host."""

    ALWAYS = "always"  # there is no numeric form
    OF_STRINGS = "of strings"  # where an operand or a result holds strings


@dataclass(frozen=True)
class HostNode:
    proto: NodeProto
    version: int

    @property
    def where(self) -> str:
        return f"{self.proto.name or self.proto.op_type} ({self.proto.op_type})"

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as Python data; tensors as arrays."""
        for a in self.proto.attribute:
            if a.name == name:
                if a.type == a.TENSOR:
                    return tensor(a.t)
                return attribute_value(a, ExternalData(None))
        return default

    def fail(self, expected: str, got: object) -> InputError:
        return InputError(self.where, expected=expected, got=got)

    def run(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """The results. Raises InputError for values that the op does not accept, or results too large for memory."""
        try:
            results = HOST_OPS[key(self.proto)].run(self, *inputs)
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as e:
            # ops do not check that attributes and values are as ONNX defines them
            raise self.fail("attributes and inputs as ONNX defines them", f"{type(e).__name__}: {e}") from e
        return results if isinstance(results, tuple) else (results,)


Run = Callable[..., "np.ndarray | tuple[np.ndarray, ...]"]
# which results hold strings, given the node and whether an operand does
StringResults = Callable[[HostNode, bool], set[int]]


@dataclass(frozen=True)
class HostOp:
    run: Run
    kind: Kind
    string_results: StringResults


HOST_OPS: dict[tuple[str, str], HostOp] = {}


def host_op(
    *names: str, domain: str = "", kind: Kind = Kind.OF_STRINGS, string_results: set[int] | StringResults | None = None
) -> Callable[[Run], Run]:
    """Register an op. string_results: those that hold strings; None: all, where an operand does."""

    def rule(n: HostNode, of_strings: bool) -> set[int]:
        if string_results is None:
            return set(range(len(n.proto.output))) if of_strings else set()
        return string_results(n, of_strings) if callable(string_results) else string_results

    def add(run: Run) -> Run:
        for name in names:
            HOST_OPS[domain, name] = HostOp(run, kind, rule)
        return run

    return add


def key(proto: NodeProto) -> tuple[str, str]:
    return ("" if proto.domain == "ai.onnx" else proto.domain, proto.op_type)


def strings(values: object, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of `str`, of bytes in UTF-8 or of str."""
    array = np.asarray(values, dtype=object) if not isinstance(values, np.ndarray) else values
    texts = np.empty(array.size, object)
    texts[:] = [v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else str(v) for v in array.reshape(-1)]
    return texts.reshape(array.shape if shape is None else shape)


def tensor(t: TensorProto) -> np.ndarray:
    """A tensor of strings or numbers as an array."""
    from onnx import numpy_helper

    if t.data_type == _STRING:
        if int(np.prod(t.dims)) != len(t.string_data) or any(d < 0 for d in t.dims):
            raise Unsupported(f"{len(t.string_data)} strings for a tensor of shape {list(t.dims)}")
        return strings(list(t.string_data), tuple(t.dims))
    dtype_from_code(t.data_type)
    return numpy_helper.to_array(t)
