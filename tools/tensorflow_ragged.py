"""A module of ragged and sparse tensors whose sizes data decides, for `tensorflow_fixtures.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

F, I = tf.float32, tf.int64


def _spec(dtype: tf.DType, *shape: int | None) -> tf.TensorSpec:
    return tf.TensorSpec(shape, dtype)


class Ragged(tf.Module):
    def __init__(self, data: Callable[..., np.ndarray]) -> None:
        super().__init__()
        self.table = tf.constant(data(11, 4))

    @tf.function(input_signature=[_spec(I, None, 2), _spec(I, None), _spec(I, 2)])
    def bags(self, places: tf.Tensor, ids: tf.Tensor, sizes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Ids of rows that may be empty, and ids that are none."""
        sparse = tf.SparseTensor(places, ids, sizes)
        return {how: tf.nn.safe_embedding_lookup_sparse(self.table, sparse, combiner=how) for how in ("mean", "sum")}

    @tf.function(input_signature=[_spec(F, None), _spec(I, None), _spec(I, None)])
    def rows(self, values: tf.Tensor, splits: tf.Tensor, named: tf.Tensor) -> dict[str, tf.Tensor]:
        """What is done to rows of a ragged tensor."""
        rows = tf.RaggedTensor.from_row_splits(values, splits)
        looked_up = tf.nn.embedding_lookup(self.table, tf.cast(tf.abs(rows) * 10.0, I))
        return {
            "sum": tf.reduce_sum(rows, 1), "max": tf.reduce_max(rows, 1), "lengths": rows.row_lengths(),
            "means": tf.reduce_mean(looked_up, 1), "vectors": looked_up.to_tensor(),
            "named": tf.gather(rows, named).to_tensor(-1.0), "columns": rows.to_sparse().indices,
        }  # fmt: skip

    @tf.function(input_signature=[_spec(F, None), _spec(I, None), _spec(I, None), _spec(I)])
    def levels(self, values: tf.Tensor, splits: tf.Tensor, owners: tf.Tensor, count: tf.Tensor) -> dict[str, tf.Tensor]:
        """Two levels, and rows that are told by each value's."""
        two = tf.RaggedTensor.from_nested_row_splits(values, [tf.constant([0, 2, 2, 3], I), splits])
        owned = tf.RaggedTensor.from_value_rowids(values, owners, nrows=count)
        return {"two": two.to_tensor(9.0), "cut": two.to_tensor(shape=[4, 1, 3]), "owned": owned.to_tensor()}


def calls(data: Callable[..., np.ndarray]) -> dict[str, list[dict[str, np.ndarray]]]:
    """What the signatures are called with: rows without values among them."""
    few = np.array([[0, 0], [0, 2], [2, 1]])
    two = {"values": data(7), "splits": np.array([0, 3, 3, 7]), "owners": np.array([0, 0, 2, 2, 2, 3, 3])}
    return {
        "bags": [
            {"places": few, "ids": np.array([3, -1, 5]), "sizes": np.array([4, 3])},
            {"places": few[:1], "ids": np.array([10]), "sizes": np.array([1, 3])},
        ],
        "rows": [
            {"values": data(6), "splits": np.array([0, 2, 2, 6]), "named": np.array([2, 0, 1, 2])},
            {"values": data(1), "splits": np.array([0, 1]), "named": np.array([0])},
        ],
        "levels": [two | {"count": np.array(n)} for n in (4, 6)],
    }  # fmt: skip
