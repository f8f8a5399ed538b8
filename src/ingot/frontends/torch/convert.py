"""Conversion of torch's dtypes, tensors and sizes to Ingot's: DType, numpy arrays that share memory, Dim."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from math import prod
from pathlib import Path
from typing import TypeGuard

import ml_dtypes
import numpy as np
import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions as sym
from torch.utils._sympy.value_ranges import ValueRanges

from ingot.frontends.shared import quotients
from ingot.frontends.shared.quotients import Quotient
from ingot.ir.dims import (
    COMPUTED_PREFIX,
    Dim,
    DimLike,
    ceildiv,
    dim_max,
    dim_min,
    floordiv,
    is_computed,
    mod,
    sign_bit,
    symbol,
    zero_bit,
)
from ingot.ir.node import Graph, Node
from ingot.ir.types import DTYPES, DType, TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError
from ingot.support.limits import max_run_time_size

DTYPE_OF: dict[torch.dtype, DType] = {
    torch.float64: DTYPES["f64"], torch.float32: DTYPES["f32"], torch.float16: DTYPES["f16"],
    torch.bfloat16: DTYPES["bf16"], torch.float8_e4m3fn: DTYPES["f8e4m3fn"], torch.float8_e5m2: DTYPES["f8e5m2"],
    torch.int64: DTYPES["i64"], torch.int32: DTYPES["i32"], torch.int16: DTYPES["i16"], torch.int8: DTYPES["i8"],
    torch.uint64: DTYPES["u64"], torch.uint32: DTYPES["u32"], torch.uint16: DTYPES["u16"], torch.uint8: DTYPES["u8"],
    torch.bool: DTYPES["bool"],
}  # fmt: skip
# complex dtype -> the dtype of its parts
PART_OF = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}
TORCH_OF: dict[DType, torch.dtype] = {v: k for k, v in DTYPE_OF.items()}


def convolutions_take_tf32() -> bool:
    """Whether PyTorch's convolutions on GPUs may take TF32, as they do by default."""
    return _takes_tf32(getattr(torch.backends.cudnn, "conv", None), torch.backends.cudnn)


def products_take_tf32() -> bool:
    """Whether PyTorch's matrix products on GPUs may take TF32."""
    return _takes_tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul)


def _takes_tf32(settings: object, older_settings: object) -> bool:
    """By `fp32_precision`, of which "none" leaves it to that of all ops; before PyTorch 2.9 by `allow_tf32`."""
    of_all: str | None = getattr(torch.backends, "fp32_precision", None)
    if of_all is None:
        return bool(getattr(older_settings, "allow_tf32", False))
    own = getattr(settings, "fp32_precision", "none")
    return (of_all if own == "none" else own) == "tf32"


# numpy lacks these types: their bits are passed as integers and viewed as the type
_BITS: dict[torch.dtype, tuple[torch.dtype, np.dtype]] = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e5m2: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2)),
}
_UNBITS: dict[np.dtype, tuple[np.dtype, torch.dtype]] = {
    np.dtype(ml_dtypes.bfloat16): (np.dtype(np.int16), torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.dtype(np.uint8), torch.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2): (np.dtype(np.uint8), torch.float8_e5m2),
}


def dtype_of(dtype: torch.dtype) -> DType:
    """The Ingot dtype of a torch dtype. Raises ImportModelError for one that Ingot lacks (complex, quantized)."""
    ir_dtype = DTYPE_OF.get(dtype)
    if ir_dtype is None:
        raise ImportModelError(f"dtype {dtype}", expected=f"one of {', '.join(map(str, DTYPE_OF))}")
    return ir_dtype


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's elements without a copy where it lives on the CPU in strided memory (bf16 and fp8 via ml_dtypes)."""
    dtype_of(tensor.dtype)
    if tensor.layout is not torch.strided:
        raise ImportModelError("tensor layout", expected="strided", got=tensor.layout, fix="call .to_dense()")
    try:
        _check_memory(tensor)
        tensor = tensor.detach().resolve_neg().cpu()
        if tensor.dtype in _BITS:
            bits, numpy_type = _BITS[tensor.dtype]
            return tensor.view(bits).numpy().view(numpy_type)
        return tensor.numpy()
    except (RuntimeError, TypeError, ValueError) as e:  # of subclasses, and of tensors without shape or memory
        raise ImportModelError("a tensor of the model", expected="elements to read", got=f"{e}") from e


def _check_memory(tensor: torch.Tensor) -> None:
    """Raise ImportModelError for a tensor whose storage was freed or shrunk: torch would read it regardless."""
    nbytes = tensor.untyped_storage().nbytes()
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.itemsize
    if tensor.numel() and end > nbytes and not tensor._is_zerotensor():
        raise ImportModelError("a tensor of the model", expected=f"memory of {end} bytes", got=f"{nbytes}")


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The inverse of `to_numpy`, without a copy of a writable array."""
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype in _UNBITS:
        bits, dtype = _UNBITS[array.dtype]
        return torch.from_numpy(array.view(bits)).view(dtype)
    return torch.from_numpy(array)


_DATA_SYMBOL = re.compile(r"u\d+$")  # torch's unbacked symbols: values that are unknown while it traces
_NUMBER_SUFFIX = ".value"  # of the name of an unbacked symbol that may be negative
_NAME = re.compile(r"\$[\w.]+")


def finite(value: sympy.Basic) -> int | None:
    """An integer limit; None for torch's infinities."""
    return int(value) if isinstance(value, sympy.Integer) and abs(int(value)) < 2**62 else None


@dataclass(frozen=True)
class Progression:
    """The sizes step * k + start for k >= 1."""

    step: int
    start: int


class Sizes:
    """Converts torch's sympy sizes to Dims, with one naming of the symbols; equal expressions give equal Dims.

    A torch symbol that takes only the values of a progression becomes step * k + start, where k is Ingot's symbol.
    `equal`: expressions and what they equal in this model. `reads`: symbols that are values of tensors, and the ops
    that read them. `assumed`: as `equal`, but checked at each call; `stated`: these sizes without the assumptions.
    `values`: the node and the maximum of each run-time symbol met so far. `required`: sizes that the importer assumes
    not to be negative, checked at each call.
    """

    def __init__(
        self,
        names: Mapping[str, str] | None = None,
        among: Mapping[str, Progression] | None = None,
        equal: Mapping[sympy.Basic, sympy.Basic] | None = None,
        reads: Mapping[str, str] | None = None,
        assumed: Mapping[sympy.Basic, sympy.Basic] | None = None,
    ):
        self.stated = Sizes(names, among, equal, reads) if assumed else self
        self._names = dict(names or {})
        self._among = dict(among or {})
        self._equal = {**(assumed or {}), **(equal or {})}
        self._reads = dict(reads or {})
        self._dims: dict[sympy.Basic, DimLike] = {}
        self.required: list[Dim] = []
        self.values: dict[str, tuple[Node, DimLike]] = {}
        self._given = frozenset[str]()
        self._spans: dict[str, ValueRanges] = {}
        self._computed_count = 0

    def progression(self, symbol_name: str) -> Progression:
        return self._among.get(symbol_name, Progression(1, 0))

    def begin(self, spans: Mapping[sympy.Symbol, ValueRanges], given: Collection[sympy.Basic] = ()) -> None:
        """Start a graph: no run-time size is known yet. spans: torch's ranges of all symbols. given: symbols that are
        inputs, though they were values of tensors: a backward graph gets what forward read."""
        self.values, self._spans = {}, {str(s): span for s, span in spans.items()}
        self._given = frozenset(map(str, given))

    def computed_size(
        self, value: Node, max_size: DimLike | None, like: DimLike | None, spanned: bool = True
    ) -> DimLike:
        """The size whose value at run time is the i64 scalar `value`. max_size None: torch's range or the limits apply.

        like: torch's expression for it, if any; where that is defined already, the two must be equal.
        spanned: whether torch's range of it is reliable.
        """
        name_of_value = next((name for name, (node, _) in self.values.items() if node is value), None)
        if name_of_value is not None and like is None:
            return symbol(name_of_value)
        terms = like.terms if isinstance(like, Dim) else ()
        name = str(like)
        if len(terms) != 1 or not is_computed(name) or not _NAME.fullmatch(name) or name in self.values:
            self._computed_count += 1
            name = f"{COMPUTED_PREFIX}size{self._computed_count}"
            if like is not None:
                self.require_equal(symbol(name), like)
        high = finite(self._spans[name[1:]].upper) if spanned and name[1:] in self._spans else None
        if max_size is None:
            max_size = max_run_time_size() if high is None else high
        self.values[name] = value, max_size if high is None else dim_min(max_size, high)
        return symbol(name)

    def graph(self, inputs: Sequence[Node], results: Sequence[Node], names: Sequence[str]) -> Graph:
        """The graph of these values, with the run-time sizes found while building it. Raises ImportModelError for a
        size that no value defines."""
        values = [value for value, _ in self.values.values()]
        sizes = tuple((name, max_size) for name, (_, max_size) in self.values.items())
        graph = Graph(tuple(inputs), (*results, *values), tuple(names), sizes=sizes)
        unknown = sorted(s for s in graph.free_symbols if is_computed(s))
        if unknown:
            raise self._unknown(unknown[0])
        return graph

    def _unknown(self, name: str) -> ImportModelError:
        reader = self._reads.get(name.removeprefix(COMPUTED_PREFIX).removesuffix(_NUMBER_SUFFIX))
        return ImportModelError(
            f"size {name} depends on the values of a tensor" + (f", which {reader} reads" if reader else ""),
            fix="make it an int argument of the model, or compute at the full size and mask (torch.where)",
        )

    def name(self, symbol_name: str) -> str:
        if _DATA_SYMBOL.match(symbol_name) and symbol_name not in self._given:
            span = self._spans.get(symbol_name)
            low = None if span is None else finite(span.lower)
            return f"{COMPUTED_PREFIX}{symbol_name}" + ("" if low is not None and low >= 0 else _NUMBER_SUFFIX)
        name = self._names.get(symbol_name, symbol_name)
        step = self.progression(symbol_name).step
        return name if step == 1 else f"{name}_over_{step}"

    def require(self, low: DimLike, high: DimLike) -> None:
        """Record that the graph is valid only where low <= high."""
        slack = high - low
        if isinstance(slack, Dim):
            self.required.append(slack)

    def require_equal(self, a: DimLike, b: DimLike) -> None:
        """Record that the graph is valid only where these two sizes are equal."""
        self.require(a, b)
        self.require(b, a)

    def dim(self, size: int | torch.SymInt) -> DimLike:
        """A size from a tensor's shape or an argument."""
        if isinstance(size, int):
            return int(size)
        node = size.node
        return node.constant if isinstance(node.constant, int) else self.expression(node.expr)

    def expression(self, e: sympy.Basic) -> DimLike:
        size = self._dims.get(e)
        if size is None:
            size = self._dims[e] = self._convert(self._equal.get(e, e))
        return size

    def type(self, value: torch.Tensor) -> TensorType:
        """The type of `value`; for a complex tensor, the type of its parts."""
        return TensorType(dtype_of(PART_OF.get(value.dtype, value.dtype)), tuple(self.dim(d) for d in value.shape))

    def _convert(self, e: sympy.Basic) -> DimLike:
        if isinstance(e, sympy.Integer):
            return int(e)
        if isinstance(e, sympy.Symbol):
            values = self.progression(e.name)
            return symbol(self.name(e.name)) * values.step + values.start
        if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer) and int(e.exp) > 0:
            base = self.expression(e.base)
            power = base
            for _ in range(int(e.exp) - 1):
                power = power * base
            return power
        if isinstance(e, sympy.Piecewise):
            pieces = [(self.expression(value), self._bit(condition)) for value, condition in (p.args for p in e.args)]
            return reduce(lambda rest, piece: rest + (piece[0] - rest) * piece[1], reversed(pieces), 0)
        divided = _ROUNDED.get(type(e).__name__)
        if divided is not None:
            whole_size = self._rounded_float(e.args[0], divided)
            if whole_size is not None:
                return whole_size
        apply = _SYMPY.get(type(e)) or _SYMPY_BY_NAME.get(type(e).__name__)
        if apply is None:
            raise ImportModelError(f"size {e}: {type(e).__name__} is no operation on sizes that Ingot has")
        values = [self.expression(a) for a in e.args]
        return apply(*values)

    def _bit(self, e: sympy.Basic) -> DimLike:
        """1 where a condition on sizes holds, else 0."""
        if isinstance(e, sympy.logic.boolalg.BooleanAtom):
            return int(bool(e))
        if isinstance(e, sympy.Not):
            return 1 - self._bit(e.args[0])
        if isinstance(e, sympy.And | sympy.Or):
            bits = [self._bit(a) for a in e.args]
            return prod(bits) if isinstance(e, sympy.And) else 1 - prod(1 - bit for bit in bits)
        if type(e) not in _COMPARISON_BITS:
            raise ImportModelError(f"condition {e}: {type(e).__name__} is no comparison of sizes that Ingot has")
        a, b = (self.expression(a) for a in e.args)
        return _COMPARISON_BITS[type(e)](a - b)

    def _rounded_float(self, e: sympy.Basic, divided: Callable[[DimLike, DimLike], DimLike]) -> DimLike | None:
        """A float computed from sizes, rounded by `divided`: `int(n * 0.7)`, `ceil((n - 0.5) / 2)`. None for others.

        Floating-point products are rounded, so an inexact ratio is only valid for the sizes at which it was tested.
        """
        exact = self._quotient(e)
        if exact is not None:
            return divided(exact.numerator, exact.denominator)
        match type(e).__name__, e.args:
            case "Mul", (sympy.Number() as factor, product) if type(product).__name__ == "ToFloat" and factor > 0:
                ratio = _ratio(float(factor), rounds_up=divided is ceildiv)
                if ratio is None:
                    return None
                size = self.expression(product.args[0])
                self.require(size, _MAX_SIZE_TRIED)
                return divided(size * ratio.numerator, ratio.denominator)
        return None

    def _quotient(self, e: sympy.Basic) -> Quotient | None:
        """A float computed from sizes as size / number, where rounding it as a float does not change the integer."""
        number = _fraction(e)
        if number is not None:
            return Quotient(number.numerator, number.denominator)
        match type(e).__name__, e.args:
            case "ToFloat", (size,):
                return Quotient(self.expression(size))
            case "IntTrueDiv", (size, by):
                return self._divided(Quotient(self.expression(size)), by)
            case "FloatTrueDiv", (x, by):
                return self._divided(self._quotient(x), by)
            case "Add" | "Mul" as name, parts:
                values = [q for part in parts if (q := self._quotient(part)) is not None]
                combine = quotients.add if name == "Add" else quotients.mul
                return reduce(combine, values) if len(values) == len(parts) else None
        return None

    def _divided(self, x: Quotient | None, by: sympy.Basic) -> Quotient | None:
        number = _fraction(by)
        if x is None or number is None or number <= 0:
            return None
        return quotients.div(x, Quotient(number.numerator, number.denominator))


def _fraction(e: sympy.Basic) -> Fraction | None:
    fraction = Fraction(float(e)) if isinstance(e, sympy.Number) else None
    return fraction if fraction is not None and fraction.denominator <= _MAX_DENOMINATOR else None


def _truncated(size: DimLike, by: DimLike) -> DimLike:
    return dim_max(floordiv(size, by), 0) + dim_min(ceildiv(size, by), 0)


_ROUNDED: dict[str, Callable[[DimLike, DimLike], DimLike]] = {
    "FloorToInt": floordiv,
    "CeilToInt": ceildiv,
    "TruncToInt": _truncated,
}
_MAX_DENOMINATOR = 1 << 8  # of a float's factors and terms, so that numerators stay far below 2^53
_MAX_SIZE_TRIED = 1 << 16  # a ratio is tested at all sizes up to this one


def _ratio(factor: float, rounds_up: bool) -> Fraction | None:
    """The ratio that, times n and rounded, equals n * `factor` rounded for n up to _MAX_SIZE_TRIED; else None."""
    ratio = Fraction(factor).limit_denominator(1000)
    n = np.arange(_MAX_SIZE_TRIED + 1)
    rounded = np.ceil(factor * n) if rounds_up else np.floor(factor * n)
    remainder_bound = ratio.denominator - 1 if rounds_up else 0
    return ratio if np.array_equal(rounded, (n * ratio.numerator + remainder_bound) // ratio.denominator) else None


def _fold(step: Callable[[DimLike, DimLike], DimLike]) -> Callable[..., DimLike]:
    def fold(first: DimLike, *rest: DimLike) -> DimLike:
        for d in rest:
            first = step(first, d)
        return first

    return fold


_SYMPY: dict[type, Callable[..., DimLike]] = {
    sympy.Add: _fold(lambda a, b: a + b), sympy.Mul: _fold(lambda a, b: a * b), sympy.Max: _fold(dim_max),
    sympy.Min: _fold(dim_min), sympy.Abs: lambda x: dim_max(x, x * -1), sym.FloorDiv: floordiv,
    sym.CleanDiv: floordiv, sym.Mod: mod, sym.PythonMod: mod,
    sym.ModularIndexing: lambda x, d, m: mod(floordiv(x, d), m), sym.Identity: lambda x: x,
}  # fmt: skip
# of a - b: 1 where the comparison of a and b holds
_COMPARISON_BITS: dict[type, Callable[[DimLike], DimLike]] = {
    sympy.Lt: sign_bit, sympy.Ge: lambda d: 1 - sign_bit(d), sympy.Gt: lambda d: sign_bit(d * -1),
    sympy.Le: lambda d: 1 - sign_bit(d * -1), sympy.Eq: zero_bit, sympy.Ne: lambda d: 1 - zero_bit(d),
}  # fmt: skip
# classes that some torch versions lack, so looked up by name
_SYMPY_BY_NAME: dict[str, Callable[..., DimLike]] = {"Max": _fold(dim_max), "Min": _fold(dim_min)}


def symbol_names(environment: ShapeEnv | None) -> dict[str, str]:
    """torch's symbol -> the name of the user's `torch.export.Dim` ({'s77': 'batch'}); unnamed ones are left out."""
    if environment is None:
        return {}
    named: Mapping[str, str] = getattr(environment, "source_name_to_debug_name", {})
    names: dict[str, str] = {}
    for sym_, sources in getattr(environment, "var_to_sources", {}).items():
        for source in sources:
            debug = named.get(_source_name(source), "")
            # of equal sizes, one symbol represents the others
            root = environment.replace(sym_) if isinstance(sym_, sympy.Symbol) else None
            if debug.isidentifier() and debug not in names.values() and isinstance(root, sympy.Symbol):
                names.setdefault(root.name, debug)
    return names


def _source_name(source: object) -> str:
    # a method until torch 2.9, a property since then
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH_FOLDER = str(Path(torch.__file__).parent)


def location(node: fx.Node) -> str:
    """`file.py:31 (layer1.conv)`: the innermost line outside torch and the module path; either may be missing."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    user_frames = [(f, n) for f, n in frames if not f.startswith(_TORCH_FOLDER) and not f.startswith("<")]
    line = f"{Path(user_frames[-1][0]).name}:{user_frames[-1][1]}" if user_frames else ""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values()]
    path = re.sub(r"^L\['self'\]\.?", "", paths[-1]) if paths else ""
    return f"{line} ({path})" if line and path else line or path


def data_reads(graph: fx.Graph) -> dict[str, str]:
    """Symbols for values of tensors -> the op that reads the value, and its location."""
    reads: dict[str, str] = {}
    for node in graph.nodes:
        for name in node.meta.get("unbacked_bindings") or ():
            reads[str(name)] = " at ".join(filter(None, (str(node.target), location(node))))
    return reads


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)
