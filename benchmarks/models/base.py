"""What every builder hands back, and the seeded randomness that makes random weights a fair test."""

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor, nn

Axes = dict[int, str]


@dataclass(frozen=True)
class Net:
    """One network of the zoo in eval mode.

    Attributes:
        module: takes the tensors of `inputs` positionally, returns a tensor or a tuple of tensors.
        inputs: (batch, length) -> seeded example tensors; length is ignored where the family has none.
        input_names: one name per input, in order.
        axes: per input, its dynamic axes as {axis: symbol}; equal symbols are equal sizes.
        granularity: every legal length is a multiple of this.
        fixed: symbols of `axes` that torch.export cannot keep dynamic (it specialises a recurrent network's length).
    """

    module: nn.Module
    inputs: Callable[[int, int], tuple[Tensor, ...]]
    input_names: tuple[str, ...]
    axes: tuple[Axes, ...]
    granularity: int = 1
    fixed: frozenset[str] = frozenset()


def declare_torchvision_ops() -> None:
    """Declare the two library ops that torchvision's Python half expects, where its binary half does not load."""
    # a library whose binary half loads declares its ops itself, and aborts where they are there already
    with contextlib.suppress(ImportError, RuntimeError):
        importlib.import_module("torchvision")
        return
    existing = {schema.name for schema in torch._C._jit_get_all_schemas()}
    for name in ("nms", "qnms"):
        if f"torchvision::{name}" not in existing:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def library(name: str) -> ModuleType:
    """Import timm or transformers, which both look for torchvision."""
    declare_torchvision_ops()
    return importlib.import_module(name)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def disturb(module: nn.Module, seed: int = 0) -> None:
    """Replace parameters that were initialised to one constant by values around it.

    Zero biases, unit scales and LayerScale's 1e-6 make whole branches vanish, so that a wrong bias, a dropped
    scale or a wrong fold would not show in the output.
    """
    rng = generator(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.numel() < 2 or not bool((parameter == parameter.flatten()[0]).all()):
                continue
            start = float(parameter.flatten()[0])
            noise = torch.rand(parameter.shape, generator=rng)
            if start == 0:
                parameter.copy_((noise - 0.5) * 0.1)
            elif abs(start) < 1e-3:  # LayerScale at its initial 1e-5 or 1e-6
                parameter.copy_(0.1 + 0.2 * noise)
            else:
                parameter.copy_(start * (0.75 + 0.5 * noise))


def settle_batch_norms(module: nn.Module, inputs: tuple[Tensor, ...], seed: int = 1) -> None:
    """Give every BatchNorm statistics near those of its real activations, each disturbed by up to 20%.

    One pass with momentum 1 measures them (so that depth neither kills nor explodes the signal); the disturbance
    makes the mean and variance matter to the output.
    """
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        module(*inputs)
    rng = generator(seed)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval()
        norm.momentum = momentum
        mean, variance = norm.running_mean, norm.running_var
        if mean is None or variance is None:
            continue
        deviation = variance.sqrt()
        mean += 0.2 * deviation * (torch.rand(mean.shape, generator=rng) - 0.5)
        variance *= 0.8 + 0.4 * torch.rand(variance.shape, generator=rng)
        variance.clamp_(min=1e-3)


def finish(module: nn.Module, sample: tuple[Tensor, ...]) -> nn.Module:
    """Freeze `module` for inference with non-trivial constants (see `disturb`, `settle_batch_norms`)."""
    module.eval().requires_grad_(False)
    disturb(module)
    settle_batch_norms(module, sample)
    return module
