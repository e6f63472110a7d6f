"""Worst-case reservation of KV-cache blocks, so that the pipeline never has to preempt a sequence.

When its cache is full and prefix caching is on, OpenVINO GenAI 2026.4 returns wrong tokens without a word. A request
is therefore added only when the blocks it could need at its longest are free, and gives them back only when the
worker has confirmed its end.
"""

from __future__ import annotations

SPARE_BLOCKS_PER_SEQUENCE = 1
"""A sequence that copies a shared block holds the old and the new one for a moment."""
SPARE_BLOCKS = 1
"""Never reserved."""


class BlockBudget:
    """Blocks promised to live sequences. All counts are blocks unless the name says tokens."""

    def __init__(self, total: int, block_tokens: int) -> None:
        self.total = total
        self.block_tokens = block_tokens
        self._reserved: dict[int, int] = {}
        self._in_use = 0

    @property
    def reservable(self) -> int:
        """Most that all sequences together may hold."""
        return self.total - SPARE_BLOCKS

    @property
    def reserved(self) -> int:
        """Held now."""
        return self._in_use

    def worst_case(self, tokens: int) -> int:
        """What a sequence needs that may grow to `tokens`, prompt and output together."""
        return -(-tokens // self.block_tokens) + SPARE_BLOCKS_PER_SEQUENCE

    def can_ever_hold(self, blocks: int) -> bool:
        """Whether an idle engine would have that many."""
        return blocks <= self.reservable

    def has_room_for(self, blocks: int) -> bool:
        """Whether that many are free now."""
        return self._in_use + blocks <= self.reservable

    def reserve(self, sequence: int, blocks: int) -> None:
        """Hold blocks for a sequence that has none. Raises ValueError when there is no room."""
        if sequence in self._reserved:
            raise ValueError(f"sequence {sequence} holds blocks already")
        if not self.has_room_for(blocks):
            raise ValueError(f"{blocks} blocks wanted, {self.reservable - self._in_use} free")
        self._reserved[sequence] = blocks
        self._in_use += blocks

    def release(self, sequence: int) -> None:
        """Give back what a sequence holds; nothing when it holds none."""
        self._in_use -= self._reserved.pop(sequence, 0)
