"""Dynamic batching: requests of equal sizes are concatenated along the leading axis, and the results are split.

[3, 384] and [1, 384]   ->   one call on [4, 384]   ->   [3, 10] and [1, 10]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Arrays = Sequence[np.ndarray]
Run = Callable[[Arrays], Sequence[np.ndarray]]
Key = tuple[tuple[str, tuple[int, ...]], ...]


def key_of(inputs: Arrays) -> Key | None:
    """The key of requests that can be joined: their dtypes, and all sizes but the leading ones. None if the inputs have
    different leading sizes, or none."""
    if not inputs or any(not a.ndim for a in inputs) or len({a.shape[0] for a in inputs}) > 1 or not inputs[0].shape[0]:
        return None
    return tuple((a.dtype.str, a.shape[1:]) for a in inputs)


def run_joined(run: Run, requests: Sequence[Arrays]) -> list[Arrays]:
    """The results of each request, from one call. requests: inputs of equal `key_of`."""
    if len(requests) == 1:
        return [run(requests[0])]
    rows = [inputs[0].shape[0] for inputs in requests]
    results = run([np.concatenate(arrays) for arrays in zip(*requests, strict=True)])
    ends = np.cumsum(rows)[:-1]
    split = [np.split(np.asarray(result), ends) for result in results]
    return [list(parts) for parts in zip(*split, strict=True)]


def groups(keys: Sequence[Key | None], rows: Sequence[int], max_rows: int) -> list[list[int]]:
    """The indices of the requests of each joint call: of equal keys, with at most `max_rows` rows in total. Requests
    whose key is None are not joined."""
    groups_of_indices: list[list[int]] = []
    open_groups: dict[Key, list[int]] = {}
    for index, key in enumerate(keys):
        group = None if key is None else open_groups.get(key)
        if group is not None and sum(rows[i] for i in group) + rows[index] <= max_rows:
            group.append(index)
            continue
        groups_of_indices.append([index])
        if key is not None:
            open_groups[key] = groups_of_indices[-1]
    return groups_of_indices
