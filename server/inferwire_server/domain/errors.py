"""Everything that can go wrong, as the domain sees it. `rpc/status.py` maps each to one gRPC status.

ServiceError
├── InvalidRequest
├── ModelNotFound
├── GenerationNotFound
├── CapabilityAbsent
├── ModelMismatch
├── Overloaded
├── QuotaExceeded
├── WouldExceed
├── Expired
├── Unavailable
│   ├── Draining
│   ├── Starting
│   └── EngineDown
├── Aborted
│   ├── Fenced
│   ├── ResumeLost
│   ├── ReaderStalled
│   └── CancelledByOperator
├── KeyConflict
├── Unauthenticated
├── Forbidden
├── CancelledByCaller
└── InternalError
"""

from __future__ import annotations


class ServiceError(Exception):
    """A failure with a meaning to the caller.

    The message is sent to the caller: it names fields and numbers, never prompts, paths or classes.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        limit: int | None = None,
        actual: int | None = None,
        retry_after_s: float | None = None,
        started: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        """Path of the request field at fault, as in `sampling.top_p`; empty when no single field is."""
        self.limit = limit
        self.actual = actual
        self.retry_after_s = retry_after_s
        """Seconds after which trying again is useful; None when it is not. Sent only before Started."""
        self.started = started
        """Whether the engine had taken the request (contract rule 1)."""


class InvalidRequest(ServiceError):
    """A field is malformed, out of range, or does not fit the model."""

    def __init__(self, field: str, message: str, *, limit: int | None = None, actual: int | None = None) -> None:
        super().__init__(f"{field}: {message}", field=field, limit=limit, actual=actual)
        self.violation = message


class ModelNotFound(ServiceError):
    """No such model here."""


class GenerationNotFound(ServiceError):
    """No such generation here, or not the caller's."""


class CapabilityAbsent(ServiceError):
    """The field is part of the contract but the engine cannot honour it."""

    def __init__(self, field: str, message: str = "") -> None:
        super().__init__(f"{field}: {message or 'not supported by this model’s engine'}", field=field)


class ModelMismatch(ServiceError):
    """The caller expected another fingerprint, tokenizer or template."""


class Overloaded(ServiceError):
    """The queue is full by requests or tokens, or the request's queue time is used up."""


class QuotaExceeded(ServiceError):
    """The tenant is over its own quota; other servers would say the same.

    Without `retry_after_s` the request can never have what it asks for.
    """

    def __init__(
        self,
        quota: str,
        message: str,
        *,
        field: str = "",
        limit: int | None = None,
        actual: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, field=field, limit=limit, actual=actual, retry_after_s=retry_after_s)
        self.quota = quota
        """Name of the limit, as operators configure it."""


class WouldExceed(ServiceError):
    """The first token cannot come before the deadline or `first_token_target`."""


class Expired(ServiceError):
    """The deadline passed while the request waited or ran."""


class Unavailable(ServiceError):
    """This server cannot serve now; another may."""


class Draining(Unavailable):
    """The server is shutting down."""


class Starting(Unavailable):
    """The model is not loaded and warm yet."""


class EngineDown(Unavailable):
    """The engine died or fell silent."""


class Aborted(ServiceError):
    """The generation was ended by a rule, not by a fault."""


class Fenced(Aborted):
    """A later attempt of the same request has taken over."""


class ResumeLost(Aborted):
    """The continuation cannot be proved to equal what was delivered."""


class ReaderStalled(Aborted):
    """The reader took nothing for the stall time while output waited."""


class CancelledByOperator(Aborted):
    """An operator ended the generation."""


class KeyConflict(ServiceError):
    """The request id is in use with other content."""


class Unauthenticated(ServiceError):
    """No credential, or one that is not valid."""


class Forbidden(ServiceError):
    """The credential does not permit this call."""


class CancelledByCaller(ServiceError):
    """The caller went away."""


class InternalError(ServiceError):
    """Our fault. The log has the stack under `error_id`; the caller gets the id alone."""

    def __init__(self, error_id: str, *, started: bool = False) -> None:
        super().__init__(f"internal error {error_id}", started=started)
        self.error_id = error_id
