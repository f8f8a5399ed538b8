"""Scores of outputs that say nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.quantization.metric import check_outputs
from ingot.support.errors import InputError

NOTHING = np.array([np.nan, -np.inf], np.float32)


def test_outputs_without_a_finite_number_are_refused():
    with pytest.raises(InputError, match="finite numbers, got NaN and infinities alone"):
        check_outputs([(NOTHING, np.arange(3))] * 2)
    check_outputs([(NOTHING,), (np.array([np.nan, 1], np.float32),)])
    check_outputs([(np.arange(3), np.zeros(0, np.float32))])
