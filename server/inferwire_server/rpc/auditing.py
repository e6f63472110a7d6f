"""What the audit record of a call says: who, what, how much, how it ended; of what was said, what the policy wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferwire_server.rpc.call import Call
from inferwire_server.rpc.translate import prompt_of
from inferwire_server.scheduling.session import Session
from inferwire_server.security.audit import AuditTrail, Content
from inferwire_server.security.tenants import ContentPolicy

_PROBES = "/grpc.health."


class CallAudit:
    """Records every call but those of probes."""

    def __init__(self, trail: AuditTrail, content_policy: Callable[[str], ContentPolicy], *, model: str) -> None:
        """`content_policy` says what may be kept of a tenant's content; `model` is the one that is served."""
        self._trail = trail
        self._content_policy = content_policy
        self._model = model

    def ended(self, call: Call, *, code: str, reason: str, error_id: str, seconds: float) -> None:
        """The call is over, or as good as."""
        if call.method.startswith(_PROBES):
            return
        caller = call.caller
        fields: dict[str, Any] = {
            "method": call.method.removeprefix("/"),
            "tenant": caller.tenant,
            "subject": caller.subject,
            "roles": sorted(caller.roles),
            "model": self._model,
            "code": code,
            "reason": reason,
            "seconds": round(seconds, 6),
        }
        if error_id:
            fields["error_id"] = error_id
        if call.trace_id:
            fields["trace_id"] = call.trace_id
        fields |= call.facts
        if call.session is None:
            self._trail.put(fields)
            return
        fields |= _session_fields(call.session)
        self._trail.put(fields, self._content(call, call.session))

    def _content(self, call: Call, session: Session) -> Content | None:
        policy = self._content_policy(call.caller.tenant)
        if not policy.keeps_any:
            return None
        prompt = prompt_of(call.request) if policy.keeps_prompt and call.request is not None else None
        return Content(policy, prompt, tuple(session.log.texts()) if policy.keeps_output else ())


def _session_fields(session: Session) -> dict[str, Any]:
    usage, timings, generation = session.usage(), session.timings(), session.generation
    fields: dict[str, Any] = {
        "attempt": generation.attempt,
        "priority": generation.scheduling.priority.name.lower(),
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "resumed_tokens": usage.resumed_tokens,
    }
    optional = {
        "cached_tokens": usage.cached_tokens,
        "queue_seconds": timings.queue_time_s,
        "first_token_seconds": timings.first_token_time_s,
    }
    return fields | {name: value for name, value in optional.items() if value is not None}
