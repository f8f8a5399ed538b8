"""TorchScript's ops on values that are known at evaluation: numbers, strings, lists, dicts, None.

Numbers may be torch's symbolic ones, which support Python's operators.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch


def _int(v: Any, *base: int) -> Any:
    return int(v, *base) if isinstance(v, str) else torch.sym_int(v)


def _float(v: Any) -> Any:
    return float(v) if isinstance(v, str | bool) else torch.sym_float(v)


# numbers that represent tensors are passed the tensor ops' arguments: alpha, rounding_mode


def _sum(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a + b if alpha == 1 else a + alpha * b  # lists and strings are added, too


def _difference(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a - alpha * b


def _quotient(a: Any, b: Any, rounding: str | None = None) -> Any:
    if rounding is None:
        return a / b
    return a // b if rounding == "floor" or (a < 0) == (b < 0) else -(-a // b)


def _root(v: Any) -> Any:
    return v**0.5 if isinstance(v, torch.SymInt | torch.SymFloat) else math.sqrt(v)


def _round(v: Any, digits: int = 0) -> Any:
    return round(v, digits) if digits else float(round(v))


def _min_of(a: Any, b: Any = None) -> Any:
    return min(a) if b is None else torch.sym_min(a, b)


def _max_of(a: Any, b: Any = None) -> Any:
    return max(a) if b is None else torch.sym_max(a, b)


def _set(container: Any, key: Any, value: Any) -> Any:
    container[key] = value
    return container


def _appended(container: list[Any], value: Any) -> list[Any]:
    container.append(value)
    return container


def _slice(v: Any, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    return v[start:end:step]


def _arange(*bounds: Any) -> list[int]:
    return list(range(*bounds))


def _sorted(v: list[Any], reverse: bool = False) -> list[Any]:
    v.sort(reverse=reverse)
    return v


def _contains(container: Any, value: Any) -> bool:
    return value in container


def _of_dict(name: str) -> Callable[[Mapping[Any, Any]], list[Any]]:
    return lambda d: list(getattr(d, name)())


def _format(text: str, *values: Any) -> str:
    return text.format(*values)


# by the op's name without its overload; each takes the op's arguments in order
SCALARS: dict[str, Callable[..., Any]] = {
    "add": _sum, "sub": _difference, "mul": operator.mul, "div": _quotient, "floordiv": operator.floordiv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "fmod": math.fmod, "pow": operator.pow,
    "neg": operator.neg, "abs": abs, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "gt": operator.gt,
    "le": operator.le, "ge": operator.ge, "__and__": operator.and_, "__or__": operator.or_, "__xor__": operator.xor,
    "__not__": operator.not_, "__is__": operator.is_, "__isnot__": operator.is_not, "__lshift__": operator.lshift,
    "__rshift__": operator.rshift, "bitwise_not": operator.invert,
    "Bool": bool, "Int": _int, "Float": _float, "IntImplicit": _int, "FloatImplicit": _float,
    "ScalarImplicit": lambda v: v, "ceil": math.ceil, "floor": math.floor, "round": _round, "sqrt": _root,
    "log": math.log, "exp": math.exp, "sin": math.sin, "cos": math.cos, "tanh": math.tanh,
    "min": _min_of, "max": _max_of, "sum": sum, "all": all, "any": any, "range": _arange,
    "len": len, "__getitem__": operator.getitem, "__contains__": _contains, "slice": _slice, "append": _appended,
    "extend": lambda v, w: v.extend(w), "insert": lambda v, i, x: v.insert(i, x), "pop": lambda v, *i: v.pop(*i),
    "clear": lambda v: v.clear(), "reverse": lambda v: v.reverse(), "sort": _sorted, "copy": lambda v: v.copy(),
    "index": lambda v, x: v.index(x), "count": lambda v, x: v.count(x), "list": list,
    "_set_item": _set, "Delete": operator.delitem, "keys": _of_dict("keys"), "values": _of_dict("values"),
    "items": _of_dict("items"), "get": lambda d, k, v=None: d.get(k, v), "update": lambda d, o: d.update(o),
    "format": _format, "str": str, "percentFormat": lambda t, *v: t % v, "join": lambda t, v: t.join(v),
    "split": lambda t, *a: t.split(*a), "lower": str.lower, "upper": str.upper, "strip": lambda t, *a: t.strip(*a),
    "startswith": lambda t, p, *a: t.startswith(p, *a), "endswith": lambda t, p, *a: t.endswith(p, *a),
    "replace": lambda t, a, b, n=-1: t.replace(a, b, n), "ord": ord, "chr": chr,
}  # fmt: skip

# ops that query a tensor's shape or type
_CODES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.qint8, torch.quint8, torch.qint32,
    torch.bfloat16,
)  # fmt: skip
QUESTIONS: dict[str, Callable[..., Any]] = {
    "aten::size": lambda x: list(x.shape), "aten::size.int": lambda x, d: x.shape[d], "aten::dim": lambda x: x.dim(),
    "aten::len.Tensor": lambda x: x.shape[0], "aten::numel": lambda x: x.numel(), "aten::is_complex": torch.is_complex,
    "aten::is_floating_point": torch.is_floating_point, "aten::stride": lambda x: list(x.stride()),
    "aten::stride.int": lambda x, d: x.stride(d), "aten::storage_offset": lambda x: x.storage_offset(),
    "aten::is_contiguous": lambda x: x.is_contiguous(), "aten::get_device": lambda x: -1,
    "aten::is_pinned": lambda x: False, "prim::dtype": lambda x: _CODES.index(x.dtype),
    "prim::device": lambda x: torch.device("cpu"), "prim::is_cuda": lambda x: False, "prim::is_cpu": lambda x: True,
    "prim::is_mps": lambda x: False, "prim::is_xla": lambda x: False, "prim::is_quantized": lambda x: x.is_quantized,
    "prim::is_sparse": lambda x: False, "prim::is_mkldnn": lambda x: False, "prim::is_meta": lambda x: False,
    "prim::requires_grad": lambda x: False, "aten::requires_grad": lambda x: False, "prim::layout": lambda x: 0,
    "prim::data": lambda x: x.detach(), "prim::type": lambda d: d.type, "prim::itemsize": lambda x: x.element_size(),
    "prim::shape": lambda x: list(x.shape), "aten::device": lambda *a: torch.device("cpu"),
    "aten::device.with_index": lambda *a: torch.device("cpu"), "prim::nbytes": lambda x: x.nbytes,
}  # fmt: skip


def dtype_of_code(code: Any) -> Any:
    """The dtype with TorchScript's number `code`."""
    return _CODES[code] if isinstance(code, int) and not isinstance(code, bool) else code


_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def format_of_code(code: Any) -> Any:
    return _FORMATS[code] if isinstance(code, int) else code
