"""One output's text: ids in, releases of ids with exactly their text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferwire_server.text.detokenizer import TokenDecoder
from inferwire_server.text.stop_matcher import StopMatch, StopMatcher, StopStrings

_OPEN = -1
"""The end of a token that ends inside a character."""


@dataclass(slots=True)
class Released:
    """The next tokens of an output and exactly their text."""

    token_count: int
    """How many of the held and pushed ids, oldest first, go out; 0 when all of them wait."""
    text: str
    stop: str | None = None
    """The stop string that has ended the output; ids pushed after its last token count for nothing."""


class OutputText:
    """Holds ids back together with their text, so that the ids a reader has say exactly what text it has.

    A token waits while it ends inside a character, while its text may belong to a stop string, and while there is
    no text to go with it. Whole tokens only are released, except at a stop: then everything up to and including
    the token that completes the stop string goes out at once, with the text before the match (or, with
    `include_match`, up to its end). So every token of the output is in exactly one release, and whoever resumes
    after that last release is told of the same stop string again, whatever the engine would have produced next.

    Stop strings are searched in the output only, never in the prompt. Those that end before token number
    `min_output_tokens` are passed over. The text is that of all tokens since the output's first one:
    `prior_token_ids` are those that the reader has; a stop string that began in them ends the output, but their
    text is neither released again nor recalled.
    """

    def __init__(
        self,
        decoder: TokenDecoder,
        stops: StopStrings | None = None,
        *,
        include_match: bool = False,
        min_output_tokens: int = 0,
        prior_token_ids: Iterable[int] = (),
    ) -> None:
        self._decoder = decoder
        self._matcher = StopMatcher(stops) if stops is not None else None
        self._include_match = include_match
        self._min_output_tokens = min_output_tokens
        self._tokens = 0
        self._length = 0
        """Characters of the output so far, prior ones included."""
        self._held_text = ""
        self._held_ends: list[int] = []
        """By held token: the length of the output up to its end, or _OPEN."""
        self.stop: str | None = None
        """The stop string that has ended the output; already set when the prior tokens complete one."""
        self._skip(prior_token_ids)

    def push(self, token_ids: Sequence[int]) -> Released:
        """Take the next ids of the output and release what is certain."""
        if self.stop is not None:
            return Released(0, "", self.stop)
        for token_id in token_ids:
            match = self._take(token_id)
            if match is not None:
                return self._end_at(match)
        if (self._matcher is not None and self._matcher.held) or not self._decoder.is_whole:
            return self._release_certain()
        return self._release_all() if self._held_text else Released(0, "")

    def finish(self) -> Released:
        """Release everything held: the engine has ended the output."""
        if self.stop is not None:
            return Released(0, "", self.stop)
        tail = self._decoder.finish()
        self._length += len(tail)
        self._held_text += tail
        match = self._matcher.feed(tail) if self._matcher is not None else None
        if match is not None:
            return self._end_at(match)
        return self._release_all()

    def _skip(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            match = self._take(token_id)
            if match is not None:
                self._end_at(match)
                return
        self._forget_held()

    def _take(self, token_id: int) -> StopMatch | None:
        text = self._decoder.push(token_id)
        self._tokens += 1
        self._length += len(text)
        self._held_ends.append(self._length if self._decoder.is_whole else _OPEN)
        self._held_text += text
        if self._matcher is None:
            return None
        return self._matcher.feed(text, may_stop=self._tokens >= self._min_output_tokens)

    def _release_all(self) -> Released:
        released = Released(len(self._held_ends), self._held_text)
        self._forget_held()
        return released

    def _release_certain(self) -> Released:
        certain = self._length - (self._matcher.held if self._matcher is not None else 0)
        released_length = self._length - len(self._held_text)
        count, end = 0, released_length
        for index, held_end in enumerate(self._held_ends):
            if held_end > certain:
                break
            if held_end != _OPEN:
                count, end = index + 1, held_end
        if end == released_length:
            return Released(0, "")
        cut = end - released_length
        released = Released(count, self._held_text[:cut])
        self._held_text = self._held_text[cut:]
        del self._held_ends[:count]
        return released

    def _end_at(self, match: StopMatch) -> Released:
        kept = match.end if self._include_match else match.start
        cut = kept - (self._length - len(self._held_text))
        released = Released(len(self._held_ends), self._held_text[: max(cut, 0)], match.string)
        self.stop = match.string
        self._forget_held()
        return released

    def _forget_held(self) -> None:
        self._held_text = ""
        self._held_ends.clear()
