"""An error reaches the caller with its status, whatever characters are in its words."""

from __future__ import annotations

from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.domain.errors import InvalidRequest, ModelNotFound, QuotaExceeded, ServiceError
from inferwire_server.rpc.status import MAX_DETAILS_BYTES, STATUS, wire_status

TEXT = st.text(st.characters(), max_size=400)
"""Any code points, surrogates among them."""

ERRORS = st.one_of(
    st.builds(InvalidRequest, TEXT, TEXT, limit=st.none() | st.integers(), actual=st.none() | st.integers()),
    st.builds(ModelNotFound, TEXT, field=TEXT),
    st.builds(QuotaExceeded, TEXT, TEXT, field=TEXT, limit=st.none() | st.integers(0, 2**62)),
)


@given(ERRORS)
def test_any_text_becomes_a_status_with_its_code_and_reason(error: ServiceError) -> None:
    status = wire_status(error)

    assert (status.code, status.reason) == STATUS[type(error)]
    status.message.encode()
    details = dict(status.trailers)["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    assert len(details) <= MAX_DETAILS_BYTES
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(details).details[0].Unpack(info)
    assert info.reason == status.reason


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_what_utf_8_can_carry_is_sent_as_it_stands(text: str) -> None:
    assert wire_status(ModelNotFound(text)).message == text


@given(st.integers(0xD800, 0xDFFF))
def test_what_it_cannot_carry_is_sent_as_an_escape(surrogate: int) -> None:
    assert wire_status(ModelNotFound(f"before {chr(surrogate)} after")).message == f"before \\u{surrogate:x} after"
