"""torch.compile(net, backend="ingot"): dynamo's graph, then AOTAutograd's functional aten graphs.

Dynamo passes a graph with the parameters among its inputs. For inference they are compiled in as constants, so that
weights can be packed. A call with other or changed parameters compiles again, so that load_state_dict takes effect; a
parameter that has changed twice becomes an input (`tracing/constants.py`).
An input that the graph writes (a counter, a cache of keys and values) stays an input, which the program writes in place
if nothing needs the old value after the new one (`tracing/writes.py`).
If gradients are needed, forward and backward are two graphs, and parameters are inputs of both, except frozen ones.
A graph with tensors on a GPU is compiled for that GPU.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import compress
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.utils import GmWrapper, counters, flatten_graph_inputs
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch.compiler import disable

from ingot.api.compile import compile
from ingot.frontends.torch.convert import products_take_tf32
from ingot.frontends.torch.decompose import without_handled
from ingot.frontends.torch.model import ImportedModel
from ingot.frontends.torch.tracing.constants import Constants
from ingot.frontends.torch.tracing.layouts import (
    copy_gradients,
    cut_memory,
    cut_results,
    order_of,
    report_strides,
    saved_results,
)
from ingot.frontends.torch.tracing.partition.joint import partition
from ingot.frontends.torch.tracing.sparse import padding_as_zeros, split_sparse
from ingot.frontends.torch.tracing.whole_ops import whole_attention, whole_resizes
from ingot.frontends.torch.tracing.writes import InPlaceWrites
from ingot.integrations.torch_autograd import DirectCalls
from ingot.integrations.torch_calls import CallOverState, RepeatedCall, SeededCall
from ingot.integrations.torch_eager import WithFallback, explain, has_fallback, is_reporting, report_program
from ingot.integrations.torch_flat import import_flat, ints, name_of, placeholders, unread
from ingot.integrations.torch_packing import cut_packed_input, pack_gradients, packed_partition, packed_result
from ingot.ops import draws_random
from ingot.runtime.arguments import Packing
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import ImportModelError, InputError, ShapeError, UnsupportedOpError
from ingot.support.garbage import no_collection

_aten = torch.ops.aten
_log = logging.getLogger(__name__)

__all__ = ["explain", "import_flat", "ingot_backend"]

Compiled = Callable[..., Any]
Compile = Callable[..., Compiled]


OPTIONS = ("precision", "activations", "threads", "cache", "fast_math", "fallback")


@no_collection()
def ingot_backend(
    module: fx.GraphModule | GmWrapper,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    compile_model: Callable[..., Compiled] = compile,
) -> Callable[..., Any]:
    """Dynamo's backend entry point. `compile_model` turns an ImportedModel into a callable over its flat tensors.

    mode: that of torch.compile, which selects settings of Inductor. It has no effect here.
    options: those of torch.compile: any of OPTIONS, as for `ingot.compile`. fallback: "eager" runs what Ingot does not
    support in eager PyTorch, between programs of the rest; the log and `explain` tell which.

    Raises UnsupportedOpError naming every op that Ingot does not support, unless there is a fallback; InputError for an
    unknown option.
    """
    if unknown := sorted(set(options or {}) - set(OPTIONS)):
        raise InputError("options", expected=f"some of {', '.join(OPTIONS)}", got=", ".join(unknown))
    splits = has_fallback(options or {})
    if mode is not None:
        _tell_mode(mode)
    if isinstance(module, fx.GraphModule) and any(isinstance(x, list) for x in example_inputs):  # compiled autograd's
        compile_flat = partial(ingot_backend, options=options, compile_model=compile_model)
        return flatten_graph_inputs(module, example_inputs, compile_flat)
    compile_model = partial(compile_model, **{k: v for k, v in (options or {}).items() if k != "fallback"})
    parameters = _parameters(module, example_inputs)
    table = without_handled(core_aten_decompositions())
    # forward and backward share fake tensors, which one thread at a time may use; the first backward passes of several
    # threads compile the same graph
    lock = threading.Lock()

    def specialized(
        gm: fx.GraphModule, example_inputs: Sequence[Any], fixed: frozenset[int], saved: slice = slice(0)
    ) -> _Specialized | WithFallback:
        if splits:  # the parts of a graph keep the strides of what they save for the backward pass
            make = partial(_Specialized, compile_model=compile_model, lock=lock)
            return WithFallback(gm, example_inputs, fixed, make, lock)
        run = _Specialized(gm, example_inputs, fixed, compile_model, lock, saved)
        if saved != slice(0):
            report_strides(run.results)
        return run

    def compile_inference(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # the functional graph has dynamo's inputs in dynamo's order
        mutated = _mutated_inputs()
        # in an optimizer's step, the tensors that it reads change between calls like those that it writes
        steps = any(isinstance(example_inputs[i], torch.nn.Parameter) for i in mutated & parameters)
        fixed = frozenset[int]() if steps else parameters - mutated - _large_matrices(parameters, example_inputs)
        return specialized(gm, example_inputs, fixed)

    # parameters that are trained change between calls; those that are frozen have the same names in both graphs
    frozen = _frozen(parameters, example_inputs)
    names: set[str] = set()
    leaf_strides: dict[int, Sequence[int]] = {}
    calls = DirectCalls()
    packs = _is_compile(compile_model) and not splits

    def compile_forward(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        _allow_retained_graphs()
        fixed = frozen - _mutated_inputs()
        names.update(n.name for i, n in enumerate(placeholders(gm.graph)) if i in fixed)
        leaf_strides.update(_leaf_strides(gm.graph))
        run = specialized(gm, example_inputs, fixed, saved_results())
        calls.compiled_forward(len(example_inputs), run)
        return run

    def compile_backward(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with lock:
            return calls.backward or backward_of(gm, example_inputs)

    def backward_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        copy_gradients(gm.graph, leaf_strides)
        (end,) = gm.graph.find_nodes(op="output")
        gradients, join = end.args[0], split_sparse(gm.graph)
        if packs and join is None:
            pack_gradients(gm.graph, leaf_strides)
        fixed = frozenset(i for i, n in enumerate(placeholders(gm.graph)) if n.name in names)
        program = specialized(gm, example_inputs, fixed)
        run = program if join is None else make_boxed_func(lambda *args: join(program([*args])))
        calls.compiled_backward(gradients, run)
        return run

    counters["aot_autograd"]["total"] += 1  # by which DDP's optimizer knows whose first call gives fake tensors
    # so that tokens, which order checks, are values of the graph instead of inputs
    with_tokens = functorch_config.patch(unlift_effect_tokens=True)
    with with_tokens, padding_as_zeros(), whole_resizes(), whole_attention():
        compiled = aot_module_simplified(
            module,
            example_inputs,
            fw_compiler=compile_forward,
            bw_compiler=_untraced(compile_backward),
            inference_compiler=compile_inference,
            partition_fn=packed_partition(partition) if packs else partition,
            decompositions=table,
            keep_inference_input_mutations=True,  # they are calls of the graph, which copies several at once
        )
    # parts in eager PyTorch need the settings that AOTAutograd's callable makes for them
    is_called_by_torch = calls.forward is None or splits or isinstance(module, GmWrapper)
    return compiled if is_called_by_torch else calls.wrap(compiled)


@cache
def _tell_mode(mode: str) -> None:
    """Warn, once for each mode, that it has no effect."""
    text = "torch.compile(mode=%r) has no effect: Ingot has a single mode; options= takes %s"
    _log.warning(text, mode, ", ".join(OPTIONS))


def _untraced(compile_backward: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """`compile_backward`, hidden from dynamo. It and its result run inside `backward()`, which may be called in a frame
    that dynamo compiles, such as a full training step: dynamo would trace Ingot itself."""

    @disable
    def untraced(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        run: Any = disable(compile_backward(gm, example_inputs).__call__)
        run._boxed_call = True
        return run

    return untraced


def _parameters(module: torch.nn.Module, inputs: Sequence[Any]) -> frozenset[int]:
    """Positions of the inputs that are the model's parameters and buffers, as dynamo marks them."""
    positions: set[int] = set()
    for i, node in enumerate(placeholders(module.graph) if isinstance(module, fx.GraphModule) else ()):
        is_marked = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
        if i < len(inputs) and (is_marked or isinstance(inputs[i], torch.nn.Parameter)):
            positions.add(i)
    return frozenset(positions)


def _large_matrices(parameters: frozenset[int], inputs: Sequence[Any]) -> frozenset[int]:
    """Positions of the matrices on a GPU, if they are so large together that a packed copy for each program, of the
    prompt and of the step of a decoder, would take seconds and as much memory again; products read them where they
    are."""
    matrices = {i: inputs[i] for i in parameters if inputs[i].is_cuda and inputs[i].dim() == 2}
    nbytes = sum(m.numel() * m.element_size() for m in matrices.values())
    return frozenset(matrices) if nbytes >= _UNPACKED_BYTES else frozenset()


def _frozen(parameters: frozenset[int], inputs: Sequence[Any]) -> frozenset[int]:
    """Positions of parameters on the CPU that require no gradient. Parameters on a GPU are excluded, as their values
    are not sampled for changes: a moving average that is written through `.data` would go unnoticed."""
    return frozenset(i for i in parameters if inputs[i].is_cpu and not inputs[i].requires_grad)


def _leaf_strides(graph: fx.Graph) -> dict[int, Sequence[int]]:
    """The strides of the inputs that are leaves of autograd's graph, by position; those of constant sizes."""
    context = TracingContext.try_get()
    inputs = [] if context is None or context.fw_metadata is None else context.fw_metadata.input_info
    values = [n.meta.get("val") for n in placeholders(graph)]
    return {
        i: value.stride()
        for i, (info, value) in enumerate(zip(inputs, values, strict=False))
        if info.is_leaf and isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.stride())
    }


def _mutated_inputs() -> frozenset[int]:
    """Positions of the inputs that the traced graph writes."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    inputs = enumerate(context.fw_metadata.input_info)
    return frozenset(i for i, info in inputs if info.mutates_data or info.mutates_storage_metadata)


def _allow_retained_graphs() -> None:
    """Tell AOTAutograd that backward programs do not write into saved values, so that a graph may be retained."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


_UNPACKED_BYTES = 1 << 30  # of a model's matrices on a GPU, from which on they stay inputs
_MAX_PROGRAMS = 64  # for values of ints; the oldest is dropped


class _Specialized:
    """A functional graph, compiled for the parameters of the last call, and compiled again when they change.

    An int input is a symbolic size of the graph. If it is 0 or negative, or does not tell the sizes that it is computed
    from, it is a constant of a separate program. If an op needs constants (a stride), all ints are constants; if that
    is not enough, the sizes of tensors are, too (the window of a transposed convolution). It is called with a list of
    the graph's inputs.
    """

    _boxed_call = True  # AOTAutograd's name for functions of one list

    def __init__(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        fixed: frozenset[int],
        compile_model: Compile,
        lock: threading.Lock,
        saved: slice = slice(0),
    ):
        """lock: of the fake tensors of the graph, the constants and the programs. saved: the slice of results that only
        a backward graph reads."""
        gpu = self._gpu = gpu_of(graph.graph)
        self._writes = InPlaceWrites(graph.graph)
        read, self._memory = cut_memory(graph.graph)
        (end,) = graph.graph.find_nodes(op="output")
        packed, results = packed_result(graph.graph), [*end.args[0]]
        self.results = cut_results(graph.graph, saved, self._writes.count, packed)
        self._packed = cut_packed_input(graph.graph)
        self._graph, self._constants = graph, Constants(fixed)
        self._compile = compile_model if gpu is None else partial(compile_model, **_gpu_options(gpu, compile_model))
        self._places = [] if gpu is None else _devices(graph.graph)
        if self.results.packed_count > 1:
            del self._places[1 - self.results.packed_count :]  # they are one
        inputs = enumerate((*example_inputs, *(n.meta["val"] for n in read)))
        self._orders = {i: order for i, v in inputs if i not in fixed and (order := order_of(v))}
        if self._packed is not None:
            first = len(placeholders(graph.graph)) - len(self._packed.orders)
            self._orders |= dict(enumerate(self._packed.orders, first))
        packed_inputs = 0 if self._packed is None else len(self._packed.orders)
        self._packing = Packing(packed_inputs, self.results.packed_count, is_private=packed in results)
        # positions of the inputs that may become constants, by level: ints, then also sizes of tensors
        self._ints, self._sizes, self._unsolved = ints(graph.graph)
        self._unread = unread(graph.graph)
        self._level = 0
        # numbers of the results that programs write where an input lies, by its position
        excluded = {*fixed, *self._orders, *_on_host(graph.graph, gpu)}
        self._in_place = self._writes.in_place(self.results, excluded) if _is_compile(compile_model) else {}
        self._copied = self._writes.copied(self.results)
        self._lock = lock
        # by values of ints: a program, and which inputs it takes (None: all)
        self._runs: dict[tuple[tuple[int, int], ...], tuple[Compiled, list[bool] | None]] = {}
        # while constants stay, for calls that need the addresses of tensors alone
        self._repeated: RepeatedCall | None = None

    def __call__(self, args: list[Any]) -> Any:
        if self._memory is not None:
            args = [*args, *self._memory(*args)]
        if self._repeated is not None and (result := self._repeat(args)) is not None:
            return self._finished(args, result)
        with self._lock:  # a call of another thread, with another model, has constants of its own
            self._update_constants(args)
            numbers = self._as_numbers(args) if self._sizes else ()
            run, mask = chosen = self._runs.get(numbers) or self._specialized(numbers, args)
            orders, in_place = self._orders, self._in_place
        inputs = args
        if orders:
            inputs = [a.permute(orders[i]) if i in orders else a for i, a in enumerate(args)]
        if mask is not None:
            inputs = [*compress(inputs, mask)]
        if self._packed is not None:
            inputs = [*inputs, args[self._packed.position]]
        report_program(run, inputs)
        result = run(*inputs) if not in_place else run(inputs, {n: args[i] for i, n in in_place.items()})
        if not self._sizes and isinstance(run, CompiledModel | CallOverState | SeededCall):
            read = [*compress(range(len(args)), mask)] if mask is not None else [*range(len(args))]
            read += [] if self._packed is None else [self._packed.position]
            repeated = RepeatedCall.of(run.repeated(inputs), args, result, read, in_place, self._copied)
            with self._lock:  # unless there are other constants by now
                self._repeated = repeated if self._runs.get(numbers) is chosen else None
        return self._finished(args, result)

    def _repeat(self, args: list[Any]) -> Sequence[Any] | None:
        """The program's results for tensors like the last call's; None for others, and where constants have changed."""
        with self._lock:
            self._update_constants(args)
            repeated = self._repeated
        return None if repeated is None or is_reporting() else repeated(args)

    def _finished(self, args: list[Any], result: Sequence[Any]) -> Any:
        """The graph's results from those of the program."""
        if self._places:
            pairs = zip(result, self._places, strict=True)
            result = tuple([r if place is None or r.is_cuda is place[0] else r.to(place[1]) for r, place in pairs])
        if self.results.finish is not None:
            result = self.results.finish(*args, *result)
        if count := self._writes.count:
            result, values = result[:-count], result[-count:]
            self._writes.write(args, values)
        return result

    def _update_constants(self, args: Sequence[Any]) -> None:
        """Drop the programs if a constant has changed; an input that is no constant any more gets its axis order."""
        before = self._constants.tensors.keys()
        if self._constants.positions and self._constants.changed(args):
            self._runs.clear()
            self._repeated = None
            freed = before - self._constants.tensors.keys()
            self._orders = self._orders | {i: order for i in freed if (order := order_of(args[i]))}

    def _as_numbers(self, args: Sequence[Any]) -> tuple[tuple[int, int], ...]:
        """(position, value) of the ints that are constants of the program."""
        if self._level == 0:
            return tuple([(i, args[i]) for i in self._ints if args[i] < 1 or i in self._unsolved])
        return tuple([(i, args[i]) for i in (self._ints if self._level == 1 else self._sizes)])

    def _specialized(
        self, numbers: tuple[tuple[int, int], ...], args: Sequence[Any]
    ) -> tuple[Compiled, list[bool] | None]:
        constants = self._constants.tensors
        try:
            model = import_flat(
                self._graph,
                constants,
                dict(numbers),
                self._orders,
                self.results.orders,
                self._in_place,
                self._packing,
            )
        except (UnsupportedOpError, ShapeError, ImportModelError, TypeError) as e:
            if self._level == 2 or len(numbers) == len(self._sizes):
                raise
            self._level += 1
            _log.info("compiled for values of %s: %s", ("its ints", "its sizes")[self._level - 1], e)
            return self._specialized(self._as_numbers(args), args)
        while len(self._runs) >= _MAX_PROGRAMS:
            del self._runs[next(iter(self._runs))]
        start, count = time.perf_counter(), len(self._graph.graph.nodes)
        run = self._compile(model) if not self._in_place or _may_write(model) else None
        if run is not None:
            suffix = f", for {dict(numbers)}" if numbers else ""
            _log.info("compiled a graph of %d nodes in %.2f s%s", count, time.perf_counter() - start, suffix)
        if run is not None and not self._in_place:
            call = SeededCall(run, self._gpu) if draws_random(model.graph) else run
        elif isinstance(run, CompiledModel) and not run.copied_state:
            call = CallOverState(model, run)
        else:
            names = frozenset(map(name_of, self._in_place))
            copied = run.copied_state if isinstance(run, CompiledModel) else names
            self._in_place = {i: n for i, n in self._in_place.items() if name_of(i) not in copied}
            self._runs.clear()
            return self._specialized(numbers, args)
        excluded = {*constants, *self._unread, *(i for i, _ in numbers), *self._in_place}
        mask = [i not in excluded for i in range(len(args))] if excluded else None
        chosen = self._runs[numbers] = call, mask
        return chosen


def _is_compile(compile_model: Compile) -> bool:
    """Whether it compiles to Ingot programs; any other function gets graphs without state."""
    return compile_model is compile or (isinstance(compile_model, partial) and _is_compile(compile_model.func))


def _may_write(model: ImportedModel) -> bool:
    """Whether a program may write inputs: sizes are constant, other inputs determine the device, nothing is random."""
    graph = model.graph
    return len(graph.inputs) > len(graph.state) and not graph.symbols() and not draws_random(graph)


def gpu_of(graph: fx.Graph) -> torch.device | None:
    """The GPU of a graph's tensors, or None. Raises InputError for devices without a target."""
    values = [n.meta.get("val") for n in graph.nodes]
    devices = {v.device for v in values if isinstance(v, torch.Tensor)} - {torch.device("cpu")}
    if not devices:
        return None
    if {(d.type, d.index or 0) for d in devices} != {("cuda", 0)}:
        got = ", ".join(sorted(map(str, devices)))
        raise InputError("tensors of the model", expected="tensors on the CPU or cuda:0", got=got)
    return devices.pop()


def _on_host(graph: fx.Graph, gpu: torch.device | None) -> list[int]:
    """Positions of the inputs on the host of a graph for a GPU, which is given copies of them."""
    values = [n.meta.get("val") for n in placeholders(graph)]
    return [i for i, v in enumerate(values) if gpu is not None and isinstance(v, torch.Tensor) and v.is_cpu]


def _target(gpu: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(gpu)
    return f"cuda:sm_{major}{minor}{'a' if major >= 9 else ''}"


def _gpu_options(gpu: torch.device, compile_model: Compile) -> dict[str, str]:
    """Options for a graph on a GPU: the target, and the precision of products, PyTorch's unless the caller chose."""
    chosen = compile_model.keywords if isinstance(compile_model, partial) else {}
    precision = {"precision": "tf32"} if "precision" not in chosen and products_take_tf32() else {}
    return {"target": _target(gpu), **precision}


def _devices(graph: fx.Graph) -> list[tuple[bool, torch.device] | None]:
    """Whether each result is on the GPU, and its device; None for a result that is not a tensor."""
    (end,) = (n for n in graph.nodes if n.op == "output")
    values = [n.meta.get("val") if isinstance(n, fx.Node) else None for n in end.args[0]]
    return [(v.is_cuda, v.device) if isinstance(v, torch.Tensor) else None for v in values]
