"""KV blocks: who holds how many, and which full blocks of a prefix can be had again.

A cached block is known by its parent block and its own tokens, so equal prefixes meet in one chain, compared token by
token. Blocks that nobody refers to stay until room is needed; a chain loses its tail first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

_Key = tuple["_Block | str", tuple[int, ...]]


class _Block:
    """A full block that can be found again."""

    __slots__ = ("key", "references")

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.references = 0


@dataclass(slots=True, eq=False)
class Allocation:
    """Everything one request holds, from its submission to its end."""

    namespace: str | None
    """None keeps out of the cache."""
    cached_tokens: int
    private_blocks: int
    chain: list[_Block] = field(default_factory=list)
    """Cached blocks from the first token on, all of them full."""


class KvCache:
    """A fixed number of blocks. Counts are blocks unless a name says tokens."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.held = 0
        """Reserved by live requests; a shared block counts once."""
        self._private_held = 0
        self._cached: dict[_Key, _Block] = {}
        self._idle: OrderedDict[_Block, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<KvCache {self.held}/{self.blocks} held, {len(self._idle)} idle>"

    def needed(self, tokens: int) -> int:
        """Blocks for so many tokens."""
        return -(-tokens // self.block_tokens)

    def fits(self, wishes: Sequence[tuple[Sequence[int], int, str | None]]) -> bool:
        """Whether `take` would succeed for each (tokens, total tokens, namespace) in turn."""
        cost = 0
        awakened: set[_Block] = set()
        for tokens, total_tokens, namespace in wishes:
            chain = self._find(tokens, namespace)
            sleeping = {block for block in chain if not block.references} - awakened
            awakened |= sleeping
            cost += self.needed(total_tokens) - len(chain) + len(sleeping)
        return self.held + cost <= self.blocks

    def take(self, tokens: Sequence[int], total_tokens: int, namespace: str | None) -> Allocation | None:
        """Hold blocks for a request that starts with `tokens` and may grow to a total; None when there is no room."""
        chain = self._find(tokens, namespace)
        private = self.needed(total_tokens) - len(chain)
        if self.held + private + sum(not block.references for block in chain) > self.blocks:
            return None
        for block in chain:
            self._refer(block)
        self._hold_private(private)
        while self.held + len(self._idle) > self.blocks:
            self._forget_oldest()
        return Allocation(namespace, len(chain) * self.block_tokens, private, chain)

    def computed(self, allocation: Allocation, tokens: Sequence[int]) -> None:
        """Note that the KV of these tokens, from the first one on, is there: full blocks become findable."""
        if allocation.namespace is None:
            return
        size = self.block_tokens
        chain = allocation.chain
        for start in range(len(chain) * size, len(tokens) - size + 1, size):
            key: _Key = (chain[-1] if chain else allocation.namespace, tuple(tokens[start : start + size]))
            block = self._cached.get(key)
            if block is None:
                block = self._cached[key] = _Block(key)
            # One block moves from private to shared; where another request was first, its block is used.
            self._hold_private(-1)
            allocation.private_blocks -= 1
            self._refer(block)
            chain.append(block)

    def release(self, allocation: Allocation) -> None:
        """Give everything back; findable blocks stay idle until room is needed."""
        self._hold_private(-allocation.private_blocks)
        allocation.private_blocks = 0
        for block in reversed(allocation.chain):
            block.references -= 1
            if not block.references:
                self.held -= 1
                self._idle[block] = None
        allocation.chain.clear()

    def used(self, live: Sequence[tuple[Allocation, int]]) -> int:
        """Blocks with something in them, for (allocation, its computed tokens) of every live request."""
        private = sum(max(0, self.needed(tokens) - len(allocation.chain)) for allocation, tokens in live)
        return self.held - self._private_held + private

    def _find(self, tokens: Sequence[int], namespace: str | None) -> list[_Block]:
        """The longest cached chain that leaves at least one token to compute."""
        if namespace is None:
            return []
        size = self.block_tokens
        chain: list[_Block] = []
        parent: _Block | str = namespace
        for start in range(0, len(tokens) - size, size):
            block = self._cached.get((parent, tuple(tokens[start : start + size])))
            if block is None:
                break
            chain.append(block)
            parent = block
        return chain

    def _refer(self, block: _Block) -> None:
        if not block.references:
            self.held += 1
            self._idle.pop(block, None)
        block.references += 1

    def _hold_private(self, change: int) -> None:
        self._private_held += change
        self.held += change

    def _forget_oldest(self) -> None:
        block, _ = self._idle.popitem(last=False)
        del self._cached[block.key]
