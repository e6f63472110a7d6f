"""A token's message is encoded by hand: the bytes must be those of the generated classes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from inferwire.v1 import generation_pb2
from inferwire_server.rpc.delta_encoding import encoded_delta

UINT32 = st.integers(0, 2**32 - 1)
EDGES = [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**28, 2**32 - 1]


@given(
    output_index=UINT32,
    token_offset=UINT32,
    token_count=UINT32,
    text=st.text(max_size=300),
    token_ids=st.lists(UINT32 | st.sampled_from(EDGES), max_size=40),
)
@example(output_index=0, token_offset=0, token_count=0, text="", token_ids=[])
@example(output_index=0, token_offset=127, token_count=1, text="é" * 64, token_ids=EDGES)
def test_a_delta_encoded_by_hand_is_byte_for_byte_the_generated_one(
    output_index: int, token_offset: int, token_count: int, text: str, token_ids: list[int]
) -> None:
    built = generation_pb2.StreamGenerateResponse(
        delta=generation_pb2.Delta(
            output_index=output_index,
            token_offset=token_offset,
            token_count=token_count,
            text=text,
            token_ids=token_ids,
        )
    )

    assert encoded_delta(output_index, token_offset, token_count, text, token_ids) == built.SerializeToString()
