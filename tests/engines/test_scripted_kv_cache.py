"""The scripted engine's KV blocks: never more than there are, shared by equal prefixes, and all of them given back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from inferwire_server.engines.scripted.kv_cache import Allocation, KvCache

BLOCKS, BLOCK_TOKENS = 12, 4
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=24)
namespaces = st.sampled_from(["a", "b", None])


class TestPrefixes:
    def test_a_full_block_is_found_again_in_its_namespace_only(self) -> None:
        cache = KvCache(BLOCKS, BLOCK_TOKENS)
        prompt = list(range(9))
        _compute_and_release(cache, prompt, "a")
        found = {name: _cached(cache, prompt, name) for name in ("a", "b", None)}
        assert found == {"a": 8, "b": 0, None: 0}

    def test_at_least_one_token_is_always_computed(self) -> None:
        cache = KvCache(BLOCKS, BLOCK_TOKENS)
        _compute_and_release(cache, list(range(8)), "a")
        assert _cached(cache, list(range(8)), "a") == 4

    def test_a_block_behind_another_prefix_is_another_block(self) -> None:
        cache = KvCache(BLOCKS, BLOCK_TOKENS)
        _compute_and_release(cache, [1] * 4 + [2] * 5, "a")
        assert _cached(cache, [3] * 4 + [2] * 5, "a") == 0

    def test_a_shared_prefix_is_held_once(self) -> None:
        cache = KvCache(BLOCKS, BLOCK_TOKENS)
        _compute_and_release(cache, list(range(8)), "a")
        for tail in (1, 2):
            assert cache.take([*range(8), tail], 12, "a")
        assert cache.held == 4

    def test_two_that_compute_the_same_prefix_at_once_end_up_sharing_it(self) -> None:
        cache = KvCache(BLOCKS, BLOCK_TOKENS)
        both = [cache.take(list(range(8)), 8, "a") for _ in range(2)]
        for allocation in both:
            assert allocation is not None
            cache.computed(allocation, list(range(8)))
        assert cache.held == 2

    def test_the_oldest_prefix_goes_first_and_its_tail_before_its_head(self) -> None:
        cache = KvCache(4, BLOCK_TOKENS)
        _compute_and_release(cache, [1] * 8, "a")
        _compute_and_release(cache, [2] * 8, "a")
        assert cache.take([3] * 4, 4, "a")
        assert [_found(cache, [token] * 9) for token in (2, 1)] == [8, 4]

    def test_a_prefix_in_use_is_never_forgotten(self) -> None:
        cache = KvCache(4, BLOCK_TOKENS)
        _compute_and_release(cache, [1] * 8, "a")
        assert cache.take([1] * 9, 12, "a")
        assert cache.take([2] * 4, 4, "a")
        assert cache.take([3] * 4, 4, "a") is None
        assert _found(cache, [1] * 9) == 8


def _compute_and_release(cache: KvCache, tokens: list[int], namespace: str | None) -> None:
    allocation = cache.take(tokens, len(tokens), namespace)
    assert allocation is not None
    cache.computed(allocation, tokens)
    cache.release(allocation)


def _cached(cache: KvCache, tokens: list[int], namespace: str | None) -> int:
    allocation = cache.take(tokens, len(tokens), namespace)
    assert allocation is not None
    cache.release(allocation)
    return allocation.cached_tokens


def _found(cache: KvCache, tokens: list[int]) -> int:
    """Cached tokens of a prompt that needs no more than whole blocks."""
    allocation = cache.take(tokens, len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS, "a")
    assert allocation is not None
    cache.release(allocation)
    return allocation.cached_tokens


class CacheMachine(RuleBasedStateMachine):
    """Requests come, compute and go in any order."""

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(BLOCKS, BLOCK_TOKENS)
        self.allocations: list[Allocation] = []

    @rule(target=live, prompt=prompts, growth=st.integers(1, 12), namespace=namespaces)
    def take(self, prompt: list[int], growth: int, namespace: str | None) -> tuple[Allocation | None, list[int]]:
        wish = (prompt, len(prompt) + growth, namespace)
        fits = self.cache.fits([wish])
        allocation = self.cache.take(*wish)
        assert fits is (allocation is not None)
        if allocation is not None:
            assert allocation.cached_tokens < len(prompt)
            self.allocations.append(allocation)
        return allocation, prompt

    @rule(wishes=st.lists(st.tuples(prompts, st.integers(24, 36), namespaces), max_size=4))
    def foresee_several(self, wishes: list[tuple[list[int], int, str | None]]) -> None:
        fits = self.cache.fits(wishes)
        taken = [self.cache.take(*wish) for wish in wishes]
        assert fits is all(taken)
        for allocation in filter(None, taken):
            self.cache.release(allocation)

    @rule(request=live)
    def compute(self, request: tuple[Allocation | None, list[int]]) -> None:
        allocation, prompt = request
        if allocation in self.allocations:
            self.cache.computed(allocation, prompt)

    @rule(request=consumes(live))
    def release(self, request: tuple[Allocation | None, list[int]]) -> None:
        allocation, prompt = request
        if allocation in self.allocations:
            self.cache.computed(allocation, prompt)
            self.cache.release(allocation)
            self.allocations.remove(allocation)

    @invariant()
    def holds_what_its_requests_hold_and_no_more_than_there_is(self) -> None:
        shared = {block for allocation in self.allocations for block in allocation.chain}
        private = sum(allocation.private_blocks for allocation in self.allocations)
        assert self.cache.held == len(shared) + private <= BLOCKS
        assert self.cache.used([(allocation, 0) for allocation in self.allocations]) == len(shared)

    @invariant()
    def a_cached_block_never_outlives_the_one_before_it(self) -> None:
        for allocation in self.allocations:
            for parent, block in zip(allocation.chain, allocation.chain[1:], strict=False):
                assert block.key[0] is parent
                assert parent.references >= block.references


CacheMachine.TestCase.settings = settings(stateful_step_count=20)
TestCacheMachine = CacheMachine.TestCase
