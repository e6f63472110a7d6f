"""Promises about the prefix cache."""

from __future__ import annotations

import itertools

from inferwire_server.domain.engine import Engine

from tests.engines.engine_harness import EngineHarness

_namespaces = itertools.count()


class CachingPromises(EngineHarness):
    """A cached prefix is counted where it can be, never shared between namespaces, and never changes the output."""

    def _namespace(self) -> str:
        return f"namespace-{next(_namespaces)}"

    async def test_an_engine_that_cannot_count_says_nothing(self, engine: Engine) -> None:
        recorder = await self.run(engine, self.request(self.long_prompt))
        assert (recorder.finished.cached_tokens is not None) is engine.capabilities.reports_cached_tokens

    async def test_a_prefix_is_computed_once(self, engine: Engine) -> None:
        self.requires(engine, "prefix_caching", "reports_cached_tokens", "has_cache_salt")
        request = self.request(self.long_prompt, cache_namespace=self._namespace())
        first = (await self.run(engine, request)).finished.cached_tokens
        second = (await self.run(engine, request)).finished.cached_tokens

        block = engine.capabilities.kv_block_tokens or 1
        assert first == 0
        assert second == (len(self.long_prompt) - 1) // block * block

    async def test_namespaces_share_nothing(self, engine: Engine) -> None:
        self.requires(engine, "prefix_caching", "reports_cached_tokens", "has_cache_salt")
        ours, theirs = self._namespace(), self._namespace()
        names = [ours, ours, theirs, ours]
        cached = [
            (await self.run(engine, self.request(self.long_prompt, cache_namespace=name))).finished.cached_tokens
            for name in names
        ]
        assert [bool(count) for count in cached] == [False, True, False, True]

    async def test_a_cached_prefix_does_not_change_the_output(self, engine: Engine) -> None:
        self.requires(engine, "prefix_caching", "batch_invariant")
        namespace = self._namespace() if engine.capabilities.has_cache_salt else ""
        request = self.request(self.long_prompt, cache_namespace=namespace)
        cold = await self.run(engine, request)
        cached = await self.run(engine, request)
        assert cached.token_ids == cold.token_ids

    async def test_bypassing_neither_reads_nor_writes(self, engine: Engine) -> None:
        self.requires(engine, "cache.bypass", "reports_cached_tokens", "has_cache_salt")
        namespace = self._namespace()
        bypassing = self.request(self.long_prompt, cache_namespace=namespace, bypass_cache=True)
        plain = self.request(self.long_prompt, cache_namespace=namespace)

        counts = [(await self.run(engine, request)).finished.cached_tokens for request in (bypassing, plain, bypassing)]
        assert counts == [0, 0, 0]
