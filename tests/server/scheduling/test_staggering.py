"""Requests with one long prefix that arrive together."""

from inferwire_server.scheduling.staggering import LEAST_SHARED_TOKENS, Staggering

PREFIX = tuple(range(LEAST_SHARED_TOKENS))
LONG = PREFIX + tuple(range(500, 1000))


def test_an_equal_prompt_waits_behind_the_first() -> None:
    staggering = Staggering[str]()
    leader = staggering.began(LONG, "t")

    assert staggering.leader_of(LONG, "t") is leader


def test_a_longer_prompt_with_the_same_beginning_waits_too() -> None:
    staggering = Staggering[str]()
    leader = staggering.began(PREFIX, "t")

    assert staggering.leader_of(LONG, "t") is leader


def test_nobody_waits_for_a_prefill_of_which_it_shares_less_than_half() -> None:
    staggering = Staggering[str]()
    staggering.began(LONG, "t")

    assert staggering.leader_of(PREFIX + tuple(range(2000, 2500)), "t") is None


def test_short_common_prefixes_are_not_waited_for() -> None:
    staggering = Staggering[str]()
    staggering.began(PREFIX[:-1], "t")

    assert staggering.leader_of(PREFIX[:-1], "t") is None


def test_tenants_do_not_wait_for_each_other() -> None:
    staggering = Staggering[str]()
    staggering.began(LONG, "a")

    assert staggering.leader_of(LONG, "b") is None


def test_followers_go_on_when_the_prefix_is_computed() -> None:
    staggering = Staggering[str]()
    leader = staggering.began(LONG, "t")
    leader.followers += ["second", "third"]

    assert staggering.ended(leader) == ["second", "third"]
    assert staggering.leader_of(LONG, "t") is None


def test_ending_twice_changes_nothing() -> None:
    staggering = Staggering[str]()
    first, second = staggering.began(LONG, "t"), staggering.began(LONG, "t")
    first.followers.append("follower")
    staggering.ended(first)

    assert staggering.ended(first) == []
    assert staggering.leader_of(LONG, "t") is second
