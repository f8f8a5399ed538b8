"""The cases of ONNX's node suite that Ingot does not pass, by reason. Each is checked to be refused, or to differ."""

import re

UNSUPPORTED: dict[str, tuple[str, ...]] = {}
REFUSED = {name for names in UNSUPPORTED.values() for name in names}

# ONNX's reference keeps the fraction of the resized length under align_corners; ONNX Runtime, PyTorch and Ingot do not
DIFFERENT: tuple[str, ...] = (
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
    # random numbers: numpy's
    "test_bernoulli",
    "test_bernoulli_double",
    "test_bernoulli_double_expanded",
    "test_bernoulli_expanded",
    "test_bernoulli_seed",
    "test_bernoulli_seed_expanded",
    "test_training_dropout",
    "test_training_dropout_default",
    "test_training_dropout_default_mask",
    "test_training_dropout_mask",
)

# what runs in front of the graph, which the interpreter does not see: strings, images, sequences and optionals
OF_THE_HOST = re.compile(r"string|strnorm|tfidf|regex|image_decoder|sequence|optional|_opt$|_seq(_|$)")
