"""The calls of a pair of forward and backward programs, without what AOTAutograd's runtime does for other graphs.

AOTAutograd wraps both programs in an `autograd.Function` that handles aliased inputs, tensor subclasses and random
states: some 30 of the 55 microseconds that torch adds to a forward and a backward pass. A graph that has none of these
gets a subclass of that function, which calls the programs directly; its sizes may be open, and it may write into its
inputs, as a batch norm does. It saves what AOTAutograd's saves, so that whatever is rare (double backward, a retained
graph, a cotangent of a subclass, compiled autograd) is left to the methods that it inherits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd import runtime_wrappers
from torch.compiler import disable

from ingot.support.dataclass import dataclass

Program = Callable[[list[Any]], Sequence[Any]]
_torch_c: Any = torch._C
_unsafe_view = torch.ops.aten._unsafe_view.default
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, int)
# marks axes of open size, for graphs that read the tensor later
_mark_open: Any = getattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices", None)
_NONE_OF = (
    "num_mutated_inp_runtime_indices", "num_outputs_aliased", "num_intermediate_bases", "is_rng_op_functionalized",
    "num_graphsafe_rng_states", "tokens", "num_backward_tokens", "act_input_indices",
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw", "num_opaque_objects_saved_for_bw",
    "num_tensors_saved_with_no_vc_check", "deterministic",
)  # fmt: skip


class DirectCalls:
    """AOTAutograd's callable for a graph, which calls the two programs directly once both are compiled, if it may.

    forward, backward: the programs, from the lists of the graphs' inputs to their results; None until compiled.
    """

    def __init__(self) -> None:
        self.forward: Program | None = None
        self.backward: Program | None = None
        self._input_count = 0
        self._differentiated: tuple[bool, ...] = ()  # whether the backward graph computes an input's gradient
        self._apply: Callable[..., Any] | None = None
        self._is_decided = False

    def compiled_forward(self, input_count: int, program: Program) -> None:
        self._input_count, self.forward = input_count, program

    def compiled_backward(self, gradients: Sequence[Any], program: Program) -> None:
        """gradients: the results of the graph: nodes, or None for an input without a gradient."""
        self._differentiated = tuple(g is not None for g in gradients)
        self.backward = program

    def wrap(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """`compiled`, AOTAutograd's callable, or, once a call has shown that it may be replaced, the direct one."""

        def call(*args: Any) -> Any:
            # AOTAutograd's callable enables gradients, for a part of a function that does so within `no_grad`
            if self._apply is not None and torch.is_grad_enabled():
                return self._apply(*args)
            results = compiled(*args)
            # DistributedDataParallel's optimizer makes the first call, with tensors that have no memory
            if not self._is_decided and self.backward is not None and all(type(a) in _PLAIN_TYPES for a in args):
                self._is_decided = True
                function = _function_of(results)
                if function is not None and self._may_replace(function, args):
                    counters["ingot"]["direct_calls"] += 1
                    self._apply = self._direct(function)
            return results

        return call

    def _may_replace(self, function: Any, args: Sequence[Any]) -> bool:
        """Whether a graph needs none of what AOTAutograd's runtime does. function: AOTAutograd's autograd.Function."""
        metadata: Any = getattr(function, "metadata", None)
        try:
            if any(getattr(metadata, name) for name in _NONE_OF) or metadata.grad_enabled_mutation is not None:
                return False
            if function.maybe_subclass_metadata is not None or not function.boxed_grads_call:
                return False
            outputs, inputs = metadata.output_info, metadata.input_info
            has_open_sizes = metadata.dynamic_outputs or metadata.dynamic_saved_tensors_idxs
            if (has_open_sizes and _mark_open is None) or metadata.num_symints_saved_for_bw is None:
                return False
            tangents = [o for o in outputs if o.requires_grad]
            formats = [getattr(m, "memory_format", None) for m in metadata.subclass_tangent_meta]
            return (
                len(inputs) == len(args) == self._input_count == len(self._differentiated)
                and all(issubclass(o.raw_type, torch.Tensor) for o in outputs)
                and all(
                    is_differentiated or not i.requires_grad
                    for i, is_differentiated in zip(inputs, self._differentiated, strict=True)
                )
                and len(outputs) == metadata.num_forward_returns
                and len(formats) == len(tangents)
                and None not in formats
                and _torch_c._autograd._top_saved_tensors_default_hooks(True) is None
            )
        except AttributeError:  # another version of torch
            return False

    def _direct(self, function: Any) -> Callable[..., Any]:
        """The call of a subclass of AOTAutograd's autograd.Function that calls the programs."""
        forward_program, backward_program = self.forward, self.backward
        assert forward_program is not None and backward_program is not None
        metadata = function.metadata
        count = metadata.num_forward_returns
        saved_slice = metadata.tensors_saved_for_backwards_with_vc_check_slice
        sizes_slice = metadata.symints_saved_for_backwards_slice
        open_saved = [*metadata.dynamic_saved_tensors_idxs.items()]
        open_outputs = [(i, o.dynamic_dims) for i, o in enumerate(metadata.output_info) if o.dynamic_dims]
        constant = [i for i, o in enumerate(metadata.output_info) if not o.requires_grad]
        reshaped = [*metadata.unsafe_view_out_indices]
        metas = iter(metadata.subclass_tangent_meta)
        cotangents = [
            (i, _Layout.of(next(metas).memory_format)) for i, o in enumerate(metadata.output_info) if o.requires_grad
        ]
        is_deterministic = torch.are_deterministic_algorithms_enabled
        interpreter = _torch_c._functorch.peek_interpreter_stack
        keeps_graph = _torch_c._autograd._get_current_graph_task_keep_graph

        class CompiledFunction(function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                results = forward_program([*args])
                saved = [x.detach() if x._is_view() else x for x in results[saved_slice]]
                for i, axes in open_saved:
                    _mark_open(saved[i], axes)
                ctx.save_for_backward(*saved)
                ctx.symints = results[sizes_slice]
                ctx._tensors_no_vc_check = ctx.opaque_objects = ()
                outputs = [*results[:count]]
                for i in reshaped:  # callers may write into it, which a view among the results refuses
                    outputs[i] = _unsafe_view(outputs[i], outputs[i].shape)
                for i, axes in open_outputs:
                    _mark_open(outputs[i], axes)
                if constant:
                    ctx.mark_non_differentiable(*[outputs[i] for i in constant])
                ctx._materialize_non_diff_grads = False
                return tuple(outputs)

            @staticmethod
            @disable  # `backward()` may be called in a frame that dynamo compiles
            def backward(ctx: Any, grads: list[Any]) -> Any:
                is_rare = torch.is_grad_enabled() or is_deterministic() or keeps_graph() or interpreter() is not None
                fitted = [] if is_rare else [layout.fitted(grads[i]) for i, layout in cotangents]
                if is_rare or any([g is None for g in fitted]):
                    return function.backward(ctx, grads)
                inputs = [*ctx.symints, *ctx.saved_tensors, *fitted]
                del fitted
                grads.clear()
                ctx.maybe_clear_saved_tensors()
                return tuple(backward_program(inputs))

        # `Function.apply` also looks into each tensor for torch.func's, which torch.compile's guards have done
        compiled: Any = CompiledFunction
        base: Any = super(torch.autograd.Function, compiled)
        apply = base.apply
        is_transforming = _torch_c._are_functorch_transforms_active
        return lambda *args: CompiledFunction.apply(*args) if is_transforming() else apply(*args)


@dataclass(frozen=True)
class _Layout:
    """The memory layout that a backward graph was traced with: a memory format, or a shape and its strides."""

    memory_format: torch.memory_format | None
    shape: Sequence[int] | None
    strides: Sequence[int] | None

    @classmethod
    def of(cls, traced: Any) -> _Layout:
        return cls(traced.memory_format, traced.size, traced.stride)

    def fitted(self, x: Any) -> torch.Tensor | None:
        """`x` in this layout, a copy where it has other strides; None where it is no plain tensor of this shape."""
        if type(x) is not torch.Tensor:
            return None
        if self.memory_format is not None:
            return x.contiguous(memory_format=self.memory_format)
        if x.shape != self.shape or self.strides is None:
            return None
        if x.stride() == self.strides:
            return x
        return torch.empty_strided(x.shape, self.strides, dtype=x.dtype, device=x.device).copy_(x)


def _function_of(results: Sequence[Any]) -> Any:
    """AOTAutograd's autograd.Function, whose results these are; None if there is none."""
    for r in results:
        function = getattr(getattr(r, "grad_fn", None), "_forward_cls", None)
        if hasattr(function, "_aot_id"):
            return function
    return None
