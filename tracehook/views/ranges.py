"""What is mapped of a device's expandable segments, as a log tells it."""

from __future__ import annotations


class MappedRanges:
    """Ranges of bytes, as (first, behind the last), sorted and apart from one another."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def map(self, begin: int, end: int) -> None:
        """Add a range; those that it meets become one with it."""
        met = [range_ for range_ in self.ranges if range_[0] <= end and range_[1] >= begin]
        whole = (min([begin, *(first for first, _ in met)]), max([end, *(last for _, last in met)]))
        self.ranges = sorted([*(range_ for range_ in self.ranges if range_ not in met), whole])

    def unmap(self, begin: int, end: int) -> None:
        """Take a range away, from the middle of others too."""
        pieces = [
            piece
            for first, last in self.ranges
            for piece in ((first, min(last, begin)), (max(first, end), last))
            if piece[0] < piece[1]
        ]
        self.ranges = pieces
