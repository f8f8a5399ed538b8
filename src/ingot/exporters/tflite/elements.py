"""The types of elements that LiteRT's kernels compute with, by operator."""

from __future__ import annotations

_STORED = "f32 f16 i8 u8 i16 i32 i64 bool"  # of operators that only move elements
_BY_OPERATORS = {
    "AVERAGE_POOL_2D BATCH_MATMUL CEIL CONV_2D DEPTHWISE_CONV_2D ELU EXP FULLY_CONNECTED HARD_SWISH LEAKY_RELU": "f32",
    "LOG MAX_POOL_2D MEAN RELU RELU6 RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR ROUND RSQRT SQRT TRANSPOSE_CONV": "f32",
    "COS FLOOR GELU LOGISTIC SIN SOFTMAX TANH": "f32 f16",
    "ABS": "f32 i16 i32",
    "SIGN": "f32 f64 i32",
    "ADD": "f32 f16 i16 i32 i64",
    "SUB": "f32 i32 i64",
    "MUL": "f32 f16 i16 i32 u32 i64",
    "NEG": "f32 f16 i8 i16 i32 i64",
    "DIV POW": "f32 i32",
    "MAXIMUM MINIMUM": "f32 f16 i8 u8 i16 i32 i64",
    "EQUAL NOT_EQUAL": "f32 f16 i16 i32 i64 bool",
    "GREATER GREATER_EQUAL LESS LESS_EQUAL": "f32 i16 i32 i64",
    "ARG_MAX ARG_MIN": "f32 i8 u8 i32 bool",
    "CUMSUM REDUCE_PROD SUM": "f32 i32 i64",
    "REDUCE_MAX REDUCE_MIN": "f32 i8 u8 i16 i32 i64",
    "PAD PADV2": "f32 f16 i32 i64",
    "CAST": f"{_STORED} f64 u16 u32",
    "CONCATENATION": f"{_STORED} u32",
    "GATHER GATHER_ND REVERSE_V2": _STORED,
}  # fmt: skip
_ELEMENTS = {name: types.split() for names, types in _BY_OPERATORS.items() for name in names.split()}


def computes(operator: str, dtype: str) -> bool:
    """Whether an operator has a kernel for a first operand of this type, without quantization."""
    return operator not in _ELEMENTS or dtype in _ELEMENTS[operator]
