"""Regions, their endpoints, and which may serve."""

from __future__ import annotations

import pytest
from inferwire.regions import RegionHealth, Regions, fill, host_and_port
from inferwire.settings import ClientConfig, FailoverPolicy, Region

CONFIG = ClientConfig(
    regions=(
        Region(name="us", priority=1, endpoints=("10.1.0.1:50051",)),
        Region(name="eu", priority=0, endpoints=("10.0.0.1:50051", "infer.eu.svc:50051")),
        Region(name="cn", priority=2, endpoints=("10.2.0.1:50051", "infer.cn.svc:50051")),
    )
)


def test_regions_come_nearest_first() -> None:
    assert Regions(CONFIG).names == ("eu", "us", "cn")


def test_a_region_that_is_not_allowed_does_not_exist() -> None:
    regions = Regions(CONFIG.with_changes(allowed_regions=("eu", "us")))

    assert regions.names == ("eu", "us")
    assert {endpoint.region for endpoint in regions.endpoints} == {"eu", "us"}
    assert set(regions.unresolved()) == {"infer.eu.svc:50051"}
    assert set(regions.shares(0.0)) == {"eu", "us"}


def test_a_name_stands_for_nothing_until_it_is_resolved() -> None:
    regions = Regions(CONFIG)
    assert [endpoint.key for endpoint in regions.endpoints] == ["eu/10.0.0.1:50051", "us/10.1.0.1:50051", "cn/10.2.0.1:50051"]  # fmt: skip  # noqa: E501

    regions.resolve("infer.eu.svc:50051", ["10.0.0.7:50051", "10.0.0.8:50051", "10.0.0.7:50051"])

    assert [endpoint.target for endpoint in regions.endpoints if endpoint.region == "eu"] == [
        "10.0.0.1:50051",
        "10.0.0.7:50051",
        "10.0.0.8:50051",
    ]


def test_resolving_again_replaces_what_was_there() -> None:
    regions = Regions(CONFIG)
    regions.resolve("infer.cn.svc:50051", ["10.2.0.7:50051"])
    regions.resolve("infer.cn.svc:50051", ["10.2.0.8:50051"])

    assert [endpoint.target for endpoint in regions.endpoints if endpoint.source == "infer.cn.svc:50051"] == [
        "10.2.0.8:50051"
    ]


def test_an_address_that_two_names_share_is_one_endpoint() -> None:
    regions = Regions(CONFIG)
    regions.resolve("infer.eu.svc:50051", ["10.0.0.1:50051"])

    assert [endpoint.key for endpoint in regions.endpoints].count("eu/10.0.0.1:50051") == 1


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("infer.eu.svc:50051", ("infer.eu.svc", 50051)),
        ("dns:///infer.eu.svc:50051", ("infer.eu.svc", 50051)),
        ("dns:infer.eu.svc:50051", ("infer.eu.svc", 50051)),
        ("localhost:50051", ("localhost", 50051)),
        ("10.0.0.1:50051", None),
        ("[::1]:50051", None),
        ("dns:///10.0.0.1:50051", None),
        ("dns://8.8.8.8/infer.eu.svc:50051", None),
        ("ipv4:10.0.0.1:50051", None),
        ("unix:/run/inferwire.sock", None),
        ("unix:///run/inferwire.sock", None),
        ("xds:///inferwire", None),
        ("infer.eu.svc", None),
    ],
)
def test_only_plain_host_names_are_ours_to_resolve(target: str, name: tuple[str, int] | None) -> None:
    assert host_and_port(target) == name


class TestARegionThatReturns:
    @pytest.fixture
    def health(self) -> RegionHealth:
        health = RegionHealth("eu", FailoverPolicy(return_after_s=10.0, slow_start_s=10.0, slow_start_share=0.1))
        health.observe(2, 2, 0.0)
        health.observe(0, 2, 100.0)
        health.observe(1, 2, 110.0)
        return health

    @pytest.mark.parametrize(
        ("now", "share"), [(110.0, 0.0), (119.9, 0.0), (120.0, 0.1), (125.0, 0.55), (130.0, 1.0), (500.0, 1.0)]
    )
    def test_must_be_well_for_a_while_and_gets_back_step_by_step(
        self, health: RegionHealth, now: float, share: float
    ) -> None:
        assert health.trust(now) == pytest.approx(share)

    def test_goes_on_growing_while_it_stays_up(self, health: RegionHealth) -> None:
        health.observe(2, 2, 114.0)

        assert health.trust(125.0) == pytest.approx(0.55)

    def test_starts_again_when_it_falls_once_more(self, health: RegionHealth) -> None:
        health.observe(0, 2, 114.0)
        health.observe(1, 2, 116.0)

        assert health.trust(125.9) == 0.0
        assert health.trust(126.0) == pytest.approx(0.1)

    def test_shows_its_state(self, health: RegionHealth) -> None:
        assert repr(health) == "<RegionHealth eu returned, 1 of 2 endpoints>"


def test_a_region_that_serves_for_the_first_time_does_not_return() -> None:
    health = RegionHealth("eu", FailoverPolicy())
    health.observe(0, 0, 0.0)
    health.observe(2, 2, 1.0)

    assert health.trust(1.0) == 1.0
    assert repr(health) == "<RegionHealth eu up, 2 of 2 endpoints>"


def test_without_a_wait_and_a_slow_start_a_region_returns_at_once() -> None:
    health = RegionHealth("eu", FailoverPolicy(return_after_s=0.0, slow_start_s=0.0))
    for available, now in ((1, 0.0), (0, 1.0), (1, 2.0)):
        health.observe(available, 1, now)

    assert health.trust(2.0) == 1.0


def test_a_region_left_out_of_an_observation_has_nothing_that_serves() -> None:
    regions = Regions(CONFIG.with_changes(allowed_regions=("eu", "us")))
    regions.observe({"eu": 1, "us": 1}, 0.0)
    regions.observe({"eu": 1}, 1.0)

    assert repr(regions) == "<Regions <RegionHealth eu up, 1 of 1 endpoints>, <RegionHealth us down, 0 of 1 endpoints>>"


THREE = ClientConfig(
    regions=(
        Region(name="eu", endpoints=("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1")),
        Region(name="us", endpoints=("10.1.0.1:1", "10.1.0.2:1"), priority=1),
        Region(name="cn", endpoints=("10.2.0.1:1", "10.2.0.2:1"), priority=2),
    )
)


class TestSpill:
    @pytest.mark.parametrize(
        ("available", "shares"),
        [
            ({"eu": 4, "us": 2, "cn": 2}, {"eu": 1.0}),
            ({"eu": 3, "us": 2, "cn": 2}, {"eu": 1.0}),
            ({"eu": 2, "us": 2, "cn": 2}, {"eu": 0.7, "us": 1.0}),
            ({"eu": 1, "us": 1, "cn": 2}, {"eu": 0.35, "us": 1.0}),
            ({"eu": 0, "us": 1, "cn": 2}, {"eu": 0.0, "us": 0.7, "cn": 1.0}),
            ({"eu": 1, "us": 0, "cn": 0}, {"eu": 1.0}),
            ({"eu": 1, "us": 1, "cn": 0}, {"eu": 0.35, "us": 1.0}),
        ],
        ids=str,
    )
    def test_a_region_keeps_what_it_can_take_and_the_next_gets_the_rest(
        self, available: dict[str, int], shares: dict[str, float]
    ) -> None:
        regions = Regions(THREE)
        regions.observe(available, 0.0)

        seen = regions.shares(0.0)

        assert {name: seen[name] for name in shares} == pytest.approx(shares)

    def test_what_all_together_cannot_take_is_split_by_what_each_can(self) -> None:
        assert fill([0.2, 0.3]) == pytest.approx([0.4, 1.0])

    def test_a_returned_region_waits_only_while_others_can_take_everything(self) -> None:
        regions = Regions(THREE)
        for available, now in (({"eu": 4, "us": 2}, 0.0), ({"us": 2}, 1.0), ({"eu": 4, "us": 2}, 2.0)):
            regions.observe(available, now)
        assert regions.shares(3.0)["eu"] == 0.0

        regions.observe({"eu": 4, "us": 0}, 3.0)
        assert regions.shares(3.0)["eu"] == 1.0

    def test_shares_change_while_a_region_returns_and_then_no_more(self) -> None:
        regions = Regions(THREE)
        for available, now in (({"eu": 4, "us": 2}, 0.0), ({"us": 2}, 1.0), ({"eu": 4, "us": 2}, 2.0)):
            regions.observe(available, now)

        assert [round(regions.shares(at)["eu"], 2) for at in (2.0, 12.0, 17.0, 22.0)] == [0.0, 0.1, 0.55, 1.0]
        assert regions.shares(30.0) is regions.shares(31.0)
