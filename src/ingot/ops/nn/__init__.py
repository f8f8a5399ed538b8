"""MODEL ops, which frontends build. Each lowers to CORE primitives."""

from ingot.ops.nn.activation import (
    Celu,
    Elu,
    Hardshrink,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mish,
    PRelu,
    Relu,
    Selu,
    Silu,
    Softplus,
    Softshrink,
    Softsign,
    ThresholdedRelu,
)
from ingot.ops.nn.adaptive_pool import AdaptiveAvgPool, AdaptiveMaxPool
from ingot.ops.nn.attention import Attention
from ingot.ops.nn.conv import Conv, ConvTranspose
from ingot.ops.nn.gradients.attention import AttentionGradients
from ingot.ops.nn.gradients.kernel import KernelGradient
from ingot.ops.nn.gradients.own import Cotangent, CustomGradient, straight_through
from ingot.ops.nn.gradients.stop import StopGradient, UnknownGradient
from ingot.ops.nn.grouped import GroupedMatMul
from ingot.ops.nn.image.boxes import SuppressOverlaps, roi_align
from ingot.ops.nn.image.gridsample import GridSample
from ingot.ops.nn.image.resize import PadMode, Resize
from ingot.ops.nn.index import GatherElements, GatherND, ScatterElements, ScatterND, Take
from ingot.ops.nn.matmul import Einsum, MatMul
from ingot.ops.nn.norm import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LocalResponseNorm,
    LpNorm,
    RMSNorm,
    Standardize,
)
from ingot.ops.nn.pool import AvgPool, LpPool, MaxPool, MaxPoolIndices
from ingot.ops.nn.quant import Dequantize
from ingot.ops.nn.recurrent import GRU, LSTM, RNN, Recurrent
from ingot.ops.nn.selection import OneHot, TopK, Trilu
from ingot.ops.nn.sharding import Sharding
from ingot.ops.nn.softmax import LogSoftmax, LogSumExp, Softmax
from ingot.ops.nn.sparse import WEIGHT_FORMS, Densify

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "WEIGHT_FORMS",
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
    "Attention",
    "AttentionGradients",
    "AvgPool",
    "BatchNorm",
    "Celu",
    "Conv",
    "ConvTranspose",
    "Cotangent",
    "CustomGradient",
    "Densify",
    "Dequantize",
    "Einsum",
    "Elu",
    "GatherElements",
    "GatherND",
    "GridSample",
    "GroupNorm",
    "GroupedMatMul",
    "HardSigmoid",
    "HardSwish",
    "Hardshrink",
    "InstanceNorm",
    "KernelGradient",
    "LayerNorm",
    "LeakyRelu",
    "LocalResponseNorm",
    "LogSoftmax",
    "LogSumExp",
    "LpNorm",
    "LpPool",
    "MatMul",
    "MaxPool",
    "MaxPoolIndices",
    "Mish",
    "OneHot",
    "PRelu",
    "PadMode",
    "RMSNorm",
    "Recurrent",
    "Relu",
    "Resize",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Sharding",
    "Silu",
    "Softmax",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Standardize",
    "StopGradient",
    "SuppressOverlaps",
    "Take",
    "ThresholdedRelu",
    "TopK",
    "Trilu",
    "UnknownGradient",
    "roi_align",
    "straight_through",
]
