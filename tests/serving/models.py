"""Small models, and a server in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import ingot
from ingot.runtime.executor import CompiledModel
from ingot.serving.application import RequestLimits, application
from ingot.serving.metrics import Metrics
from ingot.serving.repository import Repository, ServedModel
from ingot.serving.scheduler import Queueing
from ingot.serving.server import bind, serve, url_of


def proto(nodes, inputs, outputs, constants=()):
    def infos(values):
        return [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in values]

    graph = helper.make_graph(
        nodes, "g", infos(inputs), infos(outputs), [numpy_helper.from_array(v, n) for n, v in constants]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def pooled() -> onnx.ModelProto:
    """x[batch, length, 8], shift[batch, 1] -> y[batch, 4]: a product, a softmax over the length, a sum over it."""
    weight = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["s"], axis=1),
        helper.make_node("Mul", ["s", "h"], ["m"]),
        helper.make_node("ReduceSum", ["m", "axes"], ["r"], keepdims=0),
        helper.make_node("Add", ["r", "shift"], ["y"]),
    ]
    inputs = [("x", T.FLOAT, ["batch", "length", 8]), ("shift", T.FLOAT, ["batch", 1])]
    return proto(nodes, inputs, [("y", T.FLOAT, ["batch", 4])], [("w", weight), ("axes", np.array([1]))])


def centered() -> onnx.ModelProto:
    """x[batch, 3] less its mean over the batch: rows that depend on each other."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    return proto(nodes, [("x", T.FLOAT, ["batch", 3])], [("y", T.FLOAT, ["batch", 3])])


def typed() -> onnx.ModelProto:
    """Each dtype as it is."""
    kinds = {
        "f": T.FLOAT, "d": T.DOUBLE, "h": T.FLOAT16, "b": T.BOOL, "i8": T.INT8, "i16": T.INT16, "i32": T.INT32,
        "i64": T.INT64, "u8": T.UINT8, "u16": T.UINT16, "u32": T.UINT32, "u64": T.UINT64,
    }  # fmt: skip
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in kinds]
    inputs = [(name, kind, ["n"]) for name, kind in kinds.items()]
    return proto(nodes, inputs, [(f"{name}_out", kind, ["n"]) for name, kind, _ in inputs])


def upper() -> onnx.ModelProto:
    """Strings in capitals: done by the host."""
    node = helper.make_node("StringNormalizer", ["t"], ["u"], case_change_action="UPPER")
    return proto([node], [("t", T.STRING, ["n"])], [("u", T.STRING, ["n"])])


def compiled(model: onnx.ModelProto, **options) -> CompiledModel:
    return ingot.compile(model, threads=1, **options)


@contextmanager
def served(
    models: list[ServedModel], limits: RequestLimits | None = None, metrics: Metrics | None = None
) -> Iterator[str]:
    """HOST:PORT of a server that runs in a thread."""
    listener = bind("127.0.0.1", 0)
    repository = Repository(models)
    app = application(repository, limits or RequestLimits(), metrics or Metrics())
    started = threading.Event()
    servers = []
    thread = threading.Thread(
        target=serve, args=(app, listener, lambda url: started.set(), servers.append), daemon=True
    )
    thread.start()
    assert started.wait(20)
    try:
        yield url_of(listener).removeprefix("http://")
    finally:
        servers[0].should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def serving(name: str, model: CompiledModel, version: str = "1", **queueing) -> ServedModel:
    return ServedModel(name, version, model, Queueing(**queueing))
