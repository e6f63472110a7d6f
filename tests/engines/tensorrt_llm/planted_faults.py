"""Faults to be planted in a copy of the adapter, each a trap of TensorRT-LLM left open, and who must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """In each named file of the adapter the first text becomes the second."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    noticed_by: str
    """Path of the test module below this folder, and with `::` the test."""


FAULTS = (
    Fault(
        "cumulative lists are taken for deltas",
        (("cursor.py", "new = ids[start:]", "new = ids[:]"),),
        "test_cursor.py",
    ),
    Fault(
        "an end id left in the list passes as a token",
        (("cursor.py", "if token_id in self._last:", "if token_id in self._stops:"),),
        "test_cursor.py",
    ),
    Fault(
        "a list that shrinks at a stop is read again",
        (
            (
                "cursor.py",
                "if self._ended_by is not None or len(ids) <= start:",
                "self._seen = start = min(start, len(ids))\n        if self._ended_by is not None:",
            ),
        ),
        "test_cursor.py",
    ),
    Fault(
        "a stop in the last place is believed to be the length",
        (
            (
                "cursor.py",
                'if ended_by is not None or output.finish_reason == "stop":',
                'if output.finish_reason == "stop":',
            ),
        ),
        "test_streams.py",
    ),
    Fault(
        "ids outside the vocabulary are passed on",
        (("cursor.py", "if not 0 <= token_id < self._vocabulary_size:", "if False:"),),
        "test_streams.py::test_an_id_outside_the_vocabulary_ends_that_stream_alone",
    ),
    Fault(
        "only the tokenizer's end id is known to the engine",
        (("request_arguments.py", "else self._end_ids[1:]", "else []"),),
        "test_request_arguments.py",
    ),
    Fault(
        "parameters are shared between requests",
        (
            (
                "request_arguments.py",
                "self._installation.sampling_params(**self._sampling(request))",
                'self.__dict__.setdefault("_one", self._installation.sampling_params(**self._sampling(request)))',
            ),
        ),
        "test_request_arguments.py",
    ),
    Fault(
        "temperature alone is believed to sample",
        (
            (
                "request_arguments.py",
                'arguments = {"top_k": sampling.top_k, "top_p": sampling.top_p, "temperature": sampling.temperature}',
                'arguments = {"temperature": sampling.temperature}',
            ),
        ),
        "test_request_arguments.py",
    ),
    Fault(
        "penalties that the default sampler ignores are let through",
        (("request_arguments.py", "if not extends_sampling:", "if False:"),),
        "test_request_arguments.py",
    ),
    Fault(
        "requests are submitted from the serving loop",
        (
            (
                "dispatcher.py",
                "self._engine_loop.post(self.runner.begin, stream)",
                "self._serving.call_soon(self.runner.begin, stream)",
            ),
        ),
        "test_streams.py::test_the_engines_own_loop_submits_and_iterates",
    ),
    Fault(
        "every event wakes the serving loop by itself",
        (
            (
                "runner.py",
                "call_soon(self._flush)\n        self._outbox.append((stream, event))",
                "call_soon(self._flush)\n        self._outbox.append((stream, event))\n        self._flush()",
            ),
        ),
        "test_streams.py::test_a_step_of_the_whole_batch_wakes_the_serving_loop_once",
    ),
    Fault(
        "prompts share one cache whatever the namespace",
        (
            (
                "request_arguments.py",
                "cache_salt(request.cache_namespace, only_for=only_for)",
                'cache_salt("", only_for=only_for)',
            ),
        ),
        "test_streams.py::test_salts_keep_tenants_apart",
    ),
    Fault(
        "parts of a salt run into each other",
        (("cache_salt.py", '        digest.update(len(part).to_bytes(8, "big"))\n', ""),),
        "test_cache_salt.py",
    ),
    Fault(
        "cancelling does not abort",
        (
            (
                "dispatcher.py",
                "        self._engine_loop.post(self.runner.abort, stream)\n        stream.timer",
                "        stream.timer",
            ),
        ),
        "test_streams.py::test_a_thousand_streams_cancelled_at_random_points_leave_nothing_behind",
    ),
    Fault(
        "an abort is sent as often as it is asked for",
        (
            ("runner.py", "if stream.output is None or stream.is_abort_sent:", "if stream.output is None:"),
            ("stream.py", "if not self.is_cancelled and not self.is_ended:", "if not self.is_ended:"),
        ),
        "test_streams.py::test_a_thousand_streams_cancelled_at_random_points_leave_nothing_behind",
    ),
    Fault(
        "an abort into a torn-down executor is not caught",
        (
            (
                "runner.py",
                "except Exception as error:  # noqa: BLE001 - its executor may be gone",
                "except OSError as error:  #",
            ),
        ),
        "test_runner.py",
    ),
    Fault(
        "a cancel waits for the engine's word for ever",
        (
            (
                "dispatcher.py",
                "stream.timer = self._serving.call_later(self._options.cancel_grace_s",
                "stream.timer = self._serving.call_later(1e6",
            ),
        ),
        "test_streams.py::test_a_cancel_that_nobody_confirms_ends_its_stream_and_keeps_its_place_for_a_while",
    ),
    Fault(
        "a place is free before the engine let go of it",
        (("dispatcher.py", "        self._live.mark_overdue(stream)\n", "        self._live.release(stream)\n"),),
        "test_streams.py",
    ),
    Fault(
        "a caller's ValueError passes for the engine's end",
        (
            (
                "runner.py",
                "except ValueError as error:\n            return self._refused(stream, error)",
                "except ValueError as error:\n            return self._fatal(error)",
            ),
        ),
        "test_streams.py::test_a_value_error_at_submission_is_the_callers_fault_and_no_death",
    ),
    Fault(
        "a request's error passes for the engine's end",
        (
            (
                "runner.py",
                "        except self._request_error as error:\n            self._hear()\n",
                "        except KeyboardInterrupt as error:\n            self._hear()\n",
            ),
        ),
        "test_streams.py::test_a_request_error_after_tokens_is_our_fault_and_harms_nobody_else",
    ),
    Fault(
        "a worker that has ended is not looked for",
        (("vital_signs.py", "if any(_is_done(future) for future in _futures(executor)):", "if False:"),),
        "test_death.py::test_every_stream_ends_and_the_process_with_it[dead worker]",
    ),
    Fault(
        "silence is taken for patience",
        (
            (
                "watchdog.py",
                "if seen.running_since is not None and seen.now - seen.running_since > bounds.silence_s:",
                "if False:",
            ),
        ),
        "test_death.py::test_every_stream_ends_and_the_process_with_it[silent worker]",
    ),
    Fault(
        "a blocked loop is not noticed",
        (
            (
                "watchdog.py",
                "if seen.last_beat is not None and seen.now - seen.last_beat > bounds.loop_stuck_s:",
                "if False:",
            ),
        ),
        "test_death.py::test_every_stream_ends_and_the_process_with_it[loop blocked without a word]",
    ),
    Fault(
        "a death does not end the process",
        (("watchdog.py", "        self.exit_within(self._bounds.exit_s)\n", ""),),
        "test_watchdog.py",
    ),
    Fault(
        "the teardown is waited for without end",
        (("loading.py", "await asyncio.wait_for(done.wait(), timeout_s)", "await done.wait()"),),
        "test_death.py::test_a_teardown_that_hangs_is_given_up_and_the_process_ends",
    ),
    Fault(
        "the package's process-wide hook stays",
        (("loading.py", "        sys.excepthook = hook\n", "        pass\n"),),
        "test_streams.py::test_a_process_wide_hook_of_the_package_does_not_stay",
    ),
    Fault(
        "limits are left to defaults that have moved",
        (("llm_arguments.py", '        "max_num_tokens": options.max_batch_tokens,\n', ""),),
        "test_options.py",
    ),
    Fault(
        "an unrecorded name is touched",
        (("runner.py", "output.cached_tokens)", "getattr(output, 'num_cached_tokens', 0))"),),
        "test_recorded_names.py",
    ),
)
