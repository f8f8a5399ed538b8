"""The sizes of a program of steps, shared by its caller and its graph."""

from __future__ import annotations

from ingot.support.dataclass import dataclass
from ingot.support.errors import check_number

PAGE = 16  # tokens of a page
# Products of more rows may sum in another order: calls with single rows never have more, and calls with chunks never
# have fewer. No call has more samples.
FEW_ROWS = 8


@dataclass(frozen=True)
class Steps:
    """sequences: the number of concurrent ones. cache_bytes: of the pool; None: enough for all sequences at full
    length, at most 1 GiB."""

    sequences: int
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        check_number("sequences", self.sequences, "1 to 1024", lambda n: 1 <= n <= 1024, whole=True)
        if self.cache_bytes is not None:
            check_number("cache_bytes", self.cache_bytes, "a number of bytes", lambda n: n > 0, whole=True)


def page_count(tokens: int) -> int:
    """The number of pages for this number of tokens."""
    return -(-tokens // PAGE)
