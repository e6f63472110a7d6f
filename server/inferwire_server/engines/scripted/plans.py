"""What the scripted model says to a prompt, and what goes wrong while it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferwire_server.engines.scripted.vocabulary import VOCABULARY_SIZE, byte_tokens, is_byte

ErrorFactory = Callable[[], Exception]
"""Makes a fresh error for each request that meets it."""


@dataclass(frozen=True, slots=True)
class Echo:
    """Say the prompt's own text again, from behind `after` (or from its start) to the next control token."""

    after: str = ""


@dataclass(frozen=True, slots=True)
class Refuse:
    """`submit` raises the error: the request is never taken."""

    error: ErrorFactory


@dataclass(frozen=True, slots=True)
class Fail:
    """The stream ends as failed after some tokens; others run on."""

    error: ErrorFactory
    after: int = 0


@dataclass(frozen=True, slots=True)
class Die:
    """The whole engine dies after some tokens of this stream."""

    reason: str = "the engine died as planned"
    after: int = 0


@dataclass(frozen=True, slots=True)
class Freeze:
    """The whole engine stops stepping after some tokens of this stream, for some seconds or until it is thawed."""

    seconds: float | None = None
    after: int = 0


Mishap = Refuse | Fail | Die | Freeze


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One answer."""

    reply: str | Sequence[int] | Echo | None = None
    """A text, token ids, or an echo, then an end of sequence; None: pseudo-random words without end."""
    mean_output_tokens: float | None = None
    """The words end after a geometrically distributed number of tokens with this mean; None: they do not end."""
    first_token_delay_s: float = 0.0
    """Seconds of silence between the prefill and the first token."""
    token_delay_s: float = 0.0
    """Least seconds between two tokens."""
    mishap: Mishap | None = None

    def __post_init__(self) -> None:
        if self.mean_output_tokens is not None and not self.mean_output_tokens >= 1.0:
            raise ValueError(f"mean_output_tokens must be at least 1, not {self.mean_output_tokens}")
        if isinstance(self.reply, Sequence) and not isinstance(self.reply, str):
            outside = [token_id for token_id in self.reply if not 0 <= token_id < VOCABULARY_SIZE]
            if outside:
                raise ValueError(f"reply: token ids are 0 to {VOCABULARY_SIZE - 1}, not {outside[0]}")

    def reply_tokens(self, prompt_token_ids: Sequence[int]) -> Sequence[int] | None:
        """Tokens of the reply, without the end of sequence; None when there is none planned."""
        if isinstance(self.reply, str):
            return byte_tokens(self.reply)
        if isinstance(self.reply, Echo):
            return _echo(prompt_token_ids, bytes(byte_tokens(self.reply.after)))
        return self.reply


WORDS = Plan()
"""Pseudo-random words until the output's length."""


@dataclass(frozen=True, slots=True)
class PlanBook:
    """Chooses a plan by what the prompt's text contains; the first rule that fits wins."""

    rules: tuple[tuple[str, Plan], ...] = ()
    """(a part of the prompt, its plan)."""
    otherwise: Plan = WORDS

    def __call__(self, prompt: str) -> Plan:
        return next((plan for part, plan in self.rules if part in prompt), self.otherwise)


def _echo(prompt_token_ids: Sequence[int], after: bytes) -> tuple[int, ...]:
    # A control token is not a byte: it stands as a line of its own, so that a marker is never found across one.
    pieces: list[bytearray] = [bytearray()]
    for token_id in prompt_token_ids:
        if is_byte(token_id):
            pieces[-1].append(token_id)
        else:
            pieces.append(bytearray())
    if not after:
        return tuple(b"".join(pieces))
    return next((tuple(piece.partition(after)[2]) for piece in pieces if after in piece), ())
