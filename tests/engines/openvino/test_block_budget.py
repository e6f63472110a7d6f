"""The cache is never promised twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from inferwire_server.engines.openvino.block_budget import SPARE_BLOCKS_PER_SEQUENCE, BlockBudget

BLOCK_TOKENS = 32


@given(tokens=st.integers(1, 100_000))
def test_worst_case_holds_every_token_and_one_block_more(tokens: int) -> None:
    blocks = BlockBudget(10, BLOCK_TOKENS).worst_case(tokens)

    assert (blocks - SPARE_BLOCKS_PER_SEQUENCE) * BLOCK_TOKENS >= tokens
    assert (blocks - SPARE_BLOCKS_PER_SEQUENCE - 1) * BLOCK_TOKENS < tokens


def test_what_never_fits_does_not_fit_an_idle_engine() -> None:
    budget = BlockBudget(10, BLOCK_TOKENS)

    assert budget.can_ever_hold(9)
    assert budget.has_room_for(9)
    assert not budget.can_ever_hold(10)
    assert not budget.has_room_for(10)


def test_reserving_more_than_is_free_raises_and_changes_nothing() -> None:
    budget = BlockBudget(10, BLOCK_TOKENS)
    budget.reserve(1, 5)

    with pytest.raises(ValueError, match="5 blocks wanted, 4 free"):
        budget.reserve(2, 5)

    assert budget.reserved == 5


def test_a_sequence_reserves_once() -> None:
    budget = BlockBudget(10, BLOCK_TOKENS)
    budget.reserve(1, 2)

    with pytest.raises(ValueError, match="holds blocks already"):
        budget.reserve(1, 2)


def test_releasing_twice_gives_back_once() -> None:
    budget = BlockBudget(10, BLOCK_TOKENS)
    budget.reserve(1, 2)
    budget.reserve(2, 3)

    budget.release(1)
    budget.release(1)

    assert budget.reserved == 3


class BudgetMachine(RuleBasedStateMachine):
    """Any order of reserving and releasing, beside a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = BlockBudget(40, BLOCK_TOKENS)
        self.held: dict[int, int] = {}
        self.next_sequence = 0

    @rule(tokens=st.integers(1, 2_000))
    def arrive(self, tokens: int) -> None:
        blocks = self.budget.worst_case(tokens)
        if self.budget.has_room_for(blocks):
            self.budget.reserve(self.next_sequence, blocks)
            self.held[self.next_sequence] = blocks
            self.next_sequence += 1
        else:
            assert sum(self.held.values()) + blocks > self.budget.reservable

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.held)))
        self.budget.release(sequence)
        del self.held[sequence]

    @invariant()
    def agrees_with_the_dictionary_and_never_overflows(self) -> None:
        assert self.budget.reserved == sum(self.held.values())
        assert self.budget.reserved <= self.budget.reservable < self.budget.total


TestBudget = BudgetMachine.TestCase
