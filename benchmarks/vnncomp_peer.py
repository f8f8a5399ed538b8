"""auto_LiRPA's bounds in the search of `ingot certify`: the same attacks, boxes and splits.

Its source (github.com/Verified-Intelligence/auto_LiRPA) must be on PYTHONPATH, with appdirs and graphviz. Boxes are
bounded by CROWN; with `is_alpha`, those after PLAIN_BOXES by alpha-CROWN in SLOPE_STEPS steps, as in Ingot's search.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import torch
from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

from ingot.driver.compile import Options
from ingot.driver.open import Request, open_model
from ingot.transform.bounds.search.boxes import Splits
from ingot.transform.bounds.search.certify import PLAIN_BOXES, UNKNOWN, Search, Task, Verdict, static_checked_graph
from ingot.transform.bounds.search.vnnlib import Property

BATCH_BOXES = 512  # 0.54 ms a box of ACAS Xu on a core, as with 2048; with 128 0.82
SLOPE_STEPS = 4


class Chain(nn.Module):
    """An ONNX model of layers in a row. Raises NotImplementedError for another op."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.graph = onnx.load(str(path)).graph
        tensors = {t.name: numpy_helper.to_array(t) for t in self.graph.initializer}
        self.constants = {name: torch.from_numpy(v.copy()) for name, v in tensors.items()}
        (self.input,) = (i for i in self.graph.input if i.name not in self.constants)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, values = x, self.constants | {self.input.name: x}
        for node in self.graph.node:
            a, *rest = (values[name] for name in node.input)
            b = rest[0].squeeze() if rest else a  # auto_LiRPA wants no batch dimension of constants
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            match node.op_type:
                case "Add":
                    y = a + b
                case "Sub":
                    y = a - b
                case "MatMul":
                    y = F.linear(a, rest[0].T.contiguous())
                case "Gemm" if not attributes.get("transA") and len(rest) == 2:
                    y = F.linear(a, rest[0] if attributes.get("transB") else rest[0].T.contiguous(), rest[1])
                case "Relu":
                    y = F.relu(a)
                case "Sigmoid":
                    y = torch.sigmoid(a)
                case "Flatten":
                    y = a.flatten(1)
                case "Reshape":
                    y = a.reshape(-1, *rest[0].tolist()[1:])
                case _:
                    raise NotImplementedError(node.op_type)
            values[node.output[0]] = y
        return y


class Peer:
    """Lower bounds of `rows` of the result, and how far each input moves them within its box."""

    def __init__(self, path: Path, rows: np.ndarray) -> None:
        self.module = Chain(path)
        self.shape = tuple(d.dim_value or 1 for d in self.module.input.type.tensor_type.shape.dim)
        self.rows = torch.from_numpy(rows).float()
        options = {"iteration": SLOPE_STEPS, "early_stop_patience": SLOPE_STEPS, "fix_interm_bounds": True}
        self.net = BoundedModule(
            self.module, torch.zeros(self.shape), bound_opts={"optimize_bound_args": options}, device="cpu"
        )
        self.is_improved = False

    def __call__(self, lows: np.ndarray, highs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lower, upper = (torch.from_numpy(v).float().reshape(-1, *self.shape[1:]) for v in (lows, highs))
        x = BoundedTensor((lower + upper) / 2, PerturbationLpNorm(norm=float("inf"), x_L=lower, x_U=upper))
        c = self.rows.expand(len(lower), *self.rows.shape)
        needed = {self.net.output_name[0]: {self.net.input_name[0]}}
        with torch.set_grad_enabled(self.is_improved):
            bounds, _, a = self.net.compute_bounds(
                x=(x,), C=c, method="CROWN-Optimized" if self.is_improved else "CROWN", bound_upper=False,
                return_A=True, needed_A_dict=needed,
            )  # fmt: skip
        coefficients = a[self.net.output_name[0]][self.net.input_name[0]]["lA"].detach()
        influence = coefficients.abs().sum(1).flatten(1).numpy() * (highs - lows)
        return bounds.detach().double().numpy(), influence


class PeerSearch(Search):
    path: Path
    is_alpha: bool

    def prove(self, task: Task) -> Verdict | None:
        goal, box = task.goal, task.box
        bounds = Peer(self.path, goal.rows)
        lower, upper = (v.reshape(1, -1) for v in self.inner_ends(box))
        splits = Splits(goal, goal.limits, (upper - lower)[0].astype(np.float64), BATCH_BOXES)
        batches = 0
        while len(lower):
            if self.is_late:
                return self.verdict(UNKNOWN, f"{len(lower)} boxes are left after {self.seconds:g} s")
            bounds.is_improved = self.is_alpha and self.boxes > PLAIN_BOXES
            count = BATCH_BOXES
            lows, highs, lower, upper = lower[-count:], upper[-count:], lower[:-count], upper[:-count]
            batches += 1
            if batches % 6 == 0 and (verdict := self.attack(task, self.seed + batches // 6)) is not None:
                return verdict
            rows, influence = bounds(lows, highs)
            self.boxes += len(lows)
            is_open = ~goal.is_excluded(rows > goal.limits)
            lows, highs, influence, rows = lows[is_open], highs[is_open], influence[is_open], rows[is_open]
            if not len(lows):
                continue
            points = task.attack.points
            for i in range(0, len(lows), points):
                verdict = self.attack_boxes(task, lows[i : i + points], highs[i : i + points])
                if verdict is not None:
                    return verdict
            self.boxes += splits.learn(lows, highs, rows, lambda a, b: bounds(a, b)[0])
            halves = splits.halves(lows, highs, influence)
            if halves is None:
                return self.verdict(UNKNOWN, "a box of a single point has bounds on both sides of a limit")
            lower, upper = np.concatenate([lower, halves[0]]), np.concatenate([upper, halves[1]])
        return None


def certify(path: str, property_: Property, *, seconds: float, threads: int, is_alpha: bool) -> Verdict:
    """See `ingot.certify`."""
    torch.set_num_threads(threads)
    started = time.monotonic()
    graph = static_checked_graph(open_model(path, Request(None, None)).stateless().graph, property_)
    search = PeerSearch(graph, property_, "crown", False, 0, Options(threads=threads), started, seconds)
    search.path, search.is_alpha = Path(path), is_alpha
    return search.run()
