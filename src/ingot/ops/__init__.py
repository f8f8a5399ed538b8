"""Every op and builder, flat: `from ingot import ops; ops.Add()(a, b); ops.add(a, 1.0)`."""

# ruff: noqa: F401 - re-exports the names of the package

from ingot.ops.bitcast import bitcast
from ingot.ops.build import (
    add,
    and_,
    apply,
    arange,
    arg_reduce,
    atan2,
    broadcast_shapes,
    broadcast_to,
    cast,
    clip,
    compare,
    concat,
    cumulative,
    div,
    exact_slice,
    expand_dims,
    flatten,
    flip,
    floor_div,
    floor_mod,
    full,
    index_axis,
    iota,
    linear,
    maximum,
    mean,
    minimum,
    mul,
    or_,
    pad,
    pow,
    promote,
    reduce,
    reduce_max,
    reduce_min,
    reduce_prod,
    reduce_sum,
    rem,
    reshape,
    scalar,
    slice_axis,
    split,
    squeeze,
    stack,
    sub,
    swap_axes,
    transpose,
    var,
    where,
    xor,
)
from ingot.ops.core.base import Category, CoreOp, Perm, category, identity_of, inverse, permute
from ingot.ops.core.binary import (
    Add,
    And,
    Atan2,
    BitcastConvert,
    Clamp,
    Compare,
    Convert,
    Div,
    Max,
    Min,
    Mul,
    Or,
    Pow,
    Rem,
    Select,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Sub,
    Xor,
)
from ingot.ops.core.collective import AllGather, AllReduce, AllToAll, Collective, Permute, ReduceScatter
from ingot.ops.core.contraction import Convolution, DotGeneral, is_depthwise
from ingot.ops.core.control import Case, While
from ingot.ops.core.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from ingot.ops.core.elementwise import (
    Abs,
    Ceil,
    CountLeadingZeros,
    Elementwise,
    Floor,
    IsFinite,
    IsNan,
    Neg,
    Not,
    PopulationCount,
    RoundAway,
    RoundEven,
    Sign,
    Sqrt,
)
from ingot.ops.core.functions import (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Cbrt,
    Cos,
    Cosh,
    Erf,
    Exp,
    Expm1,
    Gelu,
    GeluDerivative,
    Log,
    Log1p,
    Logistic,
    Rsqrt,
    Sin,
    Sinh,
    Tan,
    Tanh,
)
from ingot.ops.core.indexing import Gather, Scatter, Sort
from ingot.ops.core.quantize import QUANTIZED_DTYPES, Quantize, reciprocal_is_exact
from ingot.ops.core.reduce import ArgReduce, CumReduce, Reduce, ReduceWindow, Reduction, reduced_dims
from ingot.ops.core.shape import BroadcastInDim, Concat, Pad, Reshape, Reverse, Slice, Transpose, Windows, fill_byte
from ingot.ops.core.source import DimValue, Iota
from ingot.ops.custom import Custom, HostCall
from ingot.ops.dft import MAX_STEP_FACTOR, fourier, real_fourier, real_inverse
from ingot.ops.group import Group
from ingot.ops.linalg import LDL, LU, SVD, Cholesky, Eig, Eigh, HouseholderQR, Reflect, TriangularSolve
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
from ingot.ops.nn.attention import Attention, AttentionWithSums
from ingot.ops.nn.conv import Conv, ConvTranspose
from ingot.ops.nn.gradients.attention import AttentionGradients, AttentionMaskGradient
from ingot.ops.nn.gradients.custom import Cotangent, CustomGradient, straight_through
from ingot.ops.nn.gradients.kernel import KernelGradient
from ingot.ops.nn.gradients.stop import StopGradient, UnknownGradient
from ingot.ops.nn.grouped import GroupedMatMul
from ingot.ops.nn.image.boxes import SuppressOverlaps, roi_align
from ingot.ops.nn.image.gridsample import GridSample
from ingot.ops.nn.image.pad_mode import PadMode
from ingot.ops.nn.image.resize import Resize
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
from ingot.ops.nn.paged_attention import PagedAttention
from ingot.ops.nn.pool import AvgPool, LpPool, MaxPool, MaxPoolIndices
from ingot.ops.nn.quant import Dequantize, DequantizeBlocks, EmbeddingLookup, RoundToBytes
from ingot.ops.nn.recurrent import GRU, LSTM, RNN, Recurrent
from ingot.ops.nn.selection import OneHot, TopK, Trilu
from ingot.ops.nn.sharding import Axes, PerDevice, Sharding
from ingot.ops.nn.softmax import LogSoftmax, LogSumExp, Softmax
from ingot.ops.nn.sparse import LEVEL_FORMS, WEIGHT_FORMS, Densify
from ingot.ops.quantized import dynamic_quantize, quantize
from ingot.ops.random import (
    RandomBits,
    RandomKey,
    counted_key,
    draws_random,
    fold_in,
    philox,
    philox_blocks,
    threefry,
    with_random_state,
    words,
)
from ingot.ops.select import coordinates, equal_rows, nonzero_mask, repeat_indices, true_indices
