"""Frames survive whatever pieces the socket delivers them in."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.engines.openvino.frames import (
    MAX_FRAME_BYTES,
    Add,
    Cancel,
    Fault,
    Frame,
    FrameError,
    FrameReader,
    Heartbeat,
    Quit,
    Ready,
    Step,
    encode,
)

sequences = st.integers(0, 2**40)
token_ids = st.lists(st.integers(0, 2**31), max_size=20)
logprobs = st.none() | st.lists(st.floats(allow_nan=False), max_size=5)
some_frame: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        Add,
        sequence=sequences,
        prompt=st.binary(max_size=64),
        settings=st.dictionaries(
            st.text(max_size=8), st.integers() | st.floats(allow_nan=False) | st.booleans() | st.frozensets(sequences)
        ),
        grammar=st.none() | st.tuples(st.text(), st.text()),
        watched_ids=st.frozensets(sequences, max_size=5),
    ),
    st.builds(Cancel, sequence=sequences),
    st.just(Quit()),
    st.just(Heartbeat()),
    st.builds(Ready, kv_blocks=sequences, kv_bytes=sequences, step_times=st.lists(st.floats(0, 9), max_size=9)),
    st.builds(Fault, stage=st.text(), text=st.text()),
    st.builds(
        Step,
        seconds=st.floats(0, 1e6),
        kv_usage=st.floats(0, 1),
        tokens=st.lists(st.tuples(sequences, token_ids, logprobs), max_size=8),
        ends=st.lists(st.tuples(sequences, st.integers(1, 5), st.none() | sequences), max_size=8),
    ),
)


@given(st.lists(some_frame, max_size=6), st.lists(st.integers(1, 50), min_size=1))
def test_frames_come_out_as_they_went_in_wherever_the_bytes_are_cut(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(map(encode, sent))
    reader = FrameReader()

    received: list[Frame] = []
    position = index = 0
    while position < len(data):
        size = cuts[index % len(cuts)]
        received.extend(reader.feed(data[position : position + size]))
        position, index = position + size, index + 1

    assert received == sent
    assert [type(frame) for frame in received] == [type(frame) for frame in sent]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">I", MAX_FRAME_BYTES + 1), id="a length beyond the limit"),
        pytest.param(struct.pack(">I", 3) + b"abc", id="no marshal data"),
        pytest.param(struct.pack(">I", 0), id="an empty body"),
        pytest.param(struct.pack(">I", 2) + b"N.", id="no tuple"),
        pytest.param(struct.pack(">I", 7) + b")\x01i\xff\x00\x00\x00", id="an unknown kind"),
    ],
)
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(data))
