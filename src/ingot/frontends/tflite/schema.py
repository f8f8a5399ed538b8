"""The part of TFLite's schema that is used: tables, options of ops, and numbers of enumerations.

Source: the schema that LiteRT publishes (https://ai.google.dev/edge/litert, schema.fbs, version 3). Options of ops that
are refused whatever they say are left out.
"""

from __future__ import annotations

from ingot.frontends.tflite.flatbuffer import schema
from ingot.ir.types import DTYPES, DType

TABLES = schema("""
Model version:u32 operator_codes:[OperatorCode] subgraphs:[SubGraph] _ buffers:[Buffer] _ _ \
signature_defs:[SignatureDef]
OperatorCode deprecated_builtin_code:i8 custom_code:str version:i32=1 builtin_code:i32
SubGraph tensors:[Tensor] inputs:[i32] outputs:[i32] operators:[Operator] name:str
Buffer data:[u8] offset:u64 size:u64
Tensor shape:[i32] type:i8 buffer:u32 name:str quantization:Quantization is_variable:bool sparsity:Sparsity \
shape_signature:[i32] _ _ external_buffer:u32
Quantization _ _ scale:[f32] zero_point:[i64] details_type:u8 _ quantized_dimension:i32
Sparsity traversal_order:[i32] block_map:[i32] dim_metadata:[DimensionMetadata]
DimensionMetadata format:i8 dense_size:i32 array_segments_type:u8 array_segments:union array_indices_type:u8 \
array_indices:union
Int32Vector values:[i32]
Uint16Vector values:[u16]
Uint8Vector values:[u8]
Operator opcode_index:u32 inputs:[i32] outputs:[i32] builtin_options_type:u8 builtin_options:union custom_options:[u8] \
_ _ intermediates:[i32] _ _ builtin_options_2_type:u8 builtin_options_2:union
SignatureDef inputs:[TensorMap] outputs:[TensorMap] signature_key:str _ subgraph_index:u32
TensorMap name:str tensor_index:u32
Conv2D padding:i8 stride_w:i32 stride_h:i32 activation:i8 dilation_w:i32=1 dilation_h:i32=1 quantized_bias_type:i8
DepthwiseConv2D padding:i8 stride_w:i32 stride_h:i32 depth_multiplier:i32 activation:i8 dilation_w:i32=1 \
dilation_h:i32=1
Pool2D padding:i8 stride_w:i32 stride_h:i32 filter_width:i32 filter_height:i32 activation:i8
SVDF rank:i32 activation:i8 asymmetric:bool
RNN activation:i8 asymmetric:bool
FullyConnected activation:i8 weights_format:i8 keep_num_dims:bool asymmetric:bool quantized_bias_type:i8 \
quant_spec:[u8]
Softmax beta:f32
Concatenation axis:i32 activation:i8
Add activation:i8 pot_scale_int16:bool=1
L2Norm activation:i8
LocalResponseNormalization radius:i32 bias:f32 alpha:f32 beta:f32
LSTM activation:i8 cell_clip:f32 proj_clip:f32 kernel_type:i8 asymmetric:bool
ResizeBilinear _ _ align_corners:bool half_pixel_centers:bool
Reshape new_shape:[i32]
SpaceToDepth block_size:i32
Mul activation:i8
Gather axis:i32 batch_dims:i32
Reducer keep_dims:bool
Sub activation:i8 pot_scale_int16:bool=1
Div activation:i8
Squeeze squeeze_dims:[i32]
SequenceRNN time_major:bool activation:i8 asymmetric:bool
StridedSlice begin_mask:i32 end_mask:i32 ellipsis_mask:i32 new_axis_mask:i32 shrink_axis_mask:i32 offset:bool
Split num_splits:i32
Cast in_data_type:i8 out_data_type:i8
ArgMax output_type:i8
TransposeConv padding:i8 stride_w:i32 stride_h:i32 activation:i8 quantized_bias_type:i8
SparseToDense validate_indices:bool
Shape out_type:i8
ArgMin output_type:i8
FakeQuant min:f32 max:f32 num_bits:i32 narrow_range:bool
Pack values_count:i32 axis:i32
OneHot axis:i32
Unpack num:i32 axis:i32
BidirectionalSequenceLSTM activation:i8 cell_clip:f32 proj_clip:f32 merge_outputs:bool time_major:bool=1 \
asymmetric:bool
BidirectionalSequenceRNN time_major:bool activation:i8 merge_outputs:bool asymmetric:bool
UnidirectionalSequenceLSTM activation:i8 cell_clip:f32 proj_clip:f32 time_major:bool asymmetric:bool \
diagonal_recurrent_tensors:bool
ResizeNearestNeighbor align_corners:bool half_pixel_centers:bool
LeakyRelu alpha:f32
MirrorPad mode:i8
SplitV num_splits:i32
Unique idx_out_type:i8=2
ReverseSequence seq_dim:i32 batch_dim:i32
If then_subgraph_index:i32 else_subgraph_index:i32
While cond_subgraph_index:i32 body_subgraph_index:i32
DepthToSpace block_size:i32
BatchMatMul adj_x:bool adj_y:bool asymmetric:bool
Cumsum exclusive:bool reverse:bool
CallOnce init_subgraph_index:i32
Conv3D padding:i8 stride_d:i32 stride_w:i32 stride_h:i32 activation:i8 dilation_d:i32=1 dilation_w:i32=1 \
dilation_h:i32=1
VarHandle container:str shared_name:str
Bucketize boundaries:[f32]
Gelu approximate:bool
EmbeddingLookupSparse combiner:i8
Random seed:i64 seed2:i64
StablehloConcatenate dimension:i64
StablehloBroadcastInDim broadcast_dimensions:[i64]
StablehloSlice start_indices:[i64] limit_indices:[i64] strides:[i64]
StablehloConvolution window_strides:[i64] padding:[i64] lhs_dilation:[i64] rhs_dilation:[i64] window_reversal:[bool] \
input_batch:i64 input_feature:i64 input_spatial:[i64] kernel_input_feature:i64 kernel_output_feature:i64 \
kernel_spatial:[i64] output_batch:i64 output_feature:i64 output_spatial:[i64] feature_group_count:i64 \
batch_group_count:i64 _
StablehloCustomCall call_target_name:str has_side_effect:bool backend_config:str api_version:i32 \
called_computations:[i32] custom_attributes:[u8]
StablehloReduce dimensions:[i64] body_subgraph_index:i32
StablehloScatter indices_are_sorted:bool update_window_dims:[i64] inserted_window_dims:[i64] \
scatter_dims_to_operand_dims:[i64] index_vector_dim:i64 unique_indices:bool update_computation_subgraph_index:i32
StablehloCompare comparison_direction:u32 compare_type:u32
StablehloDynamicSlice slice_sizes:[i64]
StablehloPad edge_padding_low:[i64] edge_padding_high:[i64] interior_padding:[i64]
StablehloIota iota_dimension:i64
StablehloDotGeneral lhs_batching_dimensions:[i64] rhs_batching_dimensions:[i64] lhs_contracting_dimensions:[i64] \
rhs_contracting_dimensions:[i64] _
StablehloReduceWindow window_dimensions:[i64] window_strides:[i64] base_dilations:[i64] window_dilations:[i64] \
padding:[i64] body_subgraph_index:i32
StablehloSort dimension:i64 is_stable:bool comparator_subgraph_index:i32
StablehloWhile cond_subgraph_index:i32 body_subgraph_index:i32
StablehloGather offset_dims:[i64] collapsed_slice_dims:[i64] start_index_map:[i64] index_vector_dim:i64 \
slice_sizes:[i64] indices_are_sorted:bool
StablehloTranspose permutation:[i64]
StablehloRngBitGenerator rng_algorithm:i8
ReduceWindow reduce_function:i32
StablehloComposite name:str decomposition_subgraph_index:i32 composite_attributes:[u8] _ version:i32
StablehloCase branch_subgraph_indices:[i32]
""")

_OPTIONS = {
    1: "Conv2D", 2: "DepthwiseConv2D", 5: "Pool2D", 6: "SVDF", 7: "RNN", 8: "FullyConnected", 9: "Softmax", 10:
    "Concatenation", 11: "Add", 12: "L2Norm", 13: "LocalResponseNormalization", 14: "LSTM", 15: "ResizeBilinear",
    17: "Reshape", 19: "SpaceToDepth", 21: "Mul", 23: "Gather", 27: "Reducer", 28: "Sub", 29: "Div", 30: "Squeeze",
    31: "SequenceRNN", 32: "StridedSlice", 35: "Split", 37: "Cast", 40: "ArgMax", 49: "TransposeConv", 50:
    "SparseToDense", 55: "Shape", 57: "ArgMin", 58: "FakeQuant", 59: "Pack", 61: "OneHot", 64: "Unpack", 69:
    "BidirectionalSequenceLSTM", 70: "BidirectionalSequenceRNN", 71: "UnidirectionalSequenceLSTM", 74:
    "ResizeNearestNeighbor", 75: "LeakyRelu", 77: "MirrorPad", 79: "SplitV", 80: "Unique", 87: "ReverseSequence",
    92: "If", 93: "While", 94: "DepthToSpace", 101: "BatchMatMul", 102: "Cumsum", 103: "CallOnce", 106: "Conv3D",
    111: "VarHandle", 114: "Random", 115: "Bucketize", 116: "Gelu", 20: "EmbeddingLookupSparse",
}  # fmt: skip
_MORE_OPTIONS = {
    1: "StablehloConcatenate", 2: "StablehloBroadcastInDim", 3: "StablehloSlice", 4: "StablehloConvolution", 5:
    "StablehloCustomCall", 6: "StablehloReduce", 7: "StablehloScatter", 8: "StablehloCompare", 9:
    "StablehloDynamicSlice", 10: "StablehloPad", 11: "StablehloIota", 12: "StablehloDotGeneral", 13:
    "StablehloReduceWindow", 14: "StablehloSort", 15: "StablehloWhile", 16: "StablehloGather", 17:
    "StablehloTranspose", 19: "StablehloRngBitGenerator", 20: "ReduceWindow", 21: "StablehloComposite", 23:
    "StablehloCase",
}  # fmt: skip
_INDICES = {1: "Int32Vector", 2: "Uint16Vector", 3: "Uint8Vector"}
UNIONS = {
    "builtin_options": _OPTIONS, "builtin_options_2": _MORE_OPTIONS,
    "array_segments": _INDICES, "array_indices": _INDICES,
}  # fmt: skip

# in the order of their numbers
_NAMES = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC
LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH
SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE
TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK
LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL
FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL
REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND
HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2
UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE
STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE
STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG
STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT
STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT
STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL
STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE
STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
"""
OPERATORS = tuple(_NAMES.split())

TYPES = (
    "FLOAT32", "FLOAT16", "INT32", "UINT8", "INT64", "STRING", "BOOL", "INT16", "COMPLEX64", "INT8", "FLOAT64",
    "COMPLEX128", "UINT64", "RESOURCE", "VARIANT", "UINT32", "UINT16", "INT4", "BFLOAT16", "INT2", "UINT4",
)  # fmt: skip
_DTYPES = {
    "FLOAT32": "f32", "FLOAT16": "f16", "INT32": "i32", "UINT8": "u8", "INT64": "i64", "BOOL": "bool", "INT16": "i16",
    "INT8": "i8", "FLOAT64": "f64", "UINT64": "u64", "UINT32": "u32", "UINT16": "u16", "INT4": "i8", "BFLOAT16": "bf16",
}  # fmt: skip


def type_name(number: int) -> str:
    return TYPES[number] if 0 <= number < len(TYPES) else f"type {number}"


def dtype(number: int) -> DType | None:
    """The dtype of a tensor's unpacked elements; None for unsupported types."""
    dtype = _DTYPES.get(type_name(number))
    return DTYPES[dtype] if dtype else None
