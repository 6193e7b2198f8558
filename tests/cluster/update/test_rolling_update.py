"""The rolling update against a fleet in virtual time: who comes, who goes, and how it turns round."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.cluster.fleet.update_plan import UpdateOptions, VersionLoad
from slipstream.cluster.update.verdict import worse
from slipstream.router.status.mirror_status import MirrorCounts
from slipstream.router.status.version_status import LogMoments
from tests.support.cluster.toy_fleet import ToyFleet, update_of


def times(num, seconds):
    """So many durations around a typical one, half as long to twice as long."""
    moments = LogMoments()
    for number in range(num):
        moments.add(seconds * 2 ** (2 * (number % 11) / 10 - 1))
    return moments


def load_of(num, *, ttft_s=0.1, itl_s=0.02, num_errors=0):
    return VersionLoad(num, 0, num, num_errors, times(num, ttft_s), times(num, itl_s))


def counts(fleet):
    return {v: (fleet.num("prefill", v, "ready"), fleet.num("decode", v, "ready")) for v in ("1", "2")}


@given(
    prefill=st.integers(0, 4),
    decode=st.integers(1, 4),
    wanted_prefill=st.integers(0, 4),
    wanted_decode=st.integers(1, 4),
    surge=st.integers(0, 2),
    max_unavailable=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_every_group_is_replaced_and_never_fewer_serve_than_allowed(
    prefill, decode, wanted_prefill, wanted_decode, surge, max_unavailable
):
    if surge == 0 and max_unavailable == 0:
        max_unavailable = 1
    fleet = ToyFleet(prefill, decode)
    wanted = {"prefill": wanted_prefill, "decode": wanted_decode}
    update = update_of(fleet, wanted, surge=surge, max_unavailable=max_unavailable)
    fleet.run(update, lambda: update.phase == "done" and fleet.split is None)
    assert counts(fleet) == {"1": (0, 0), "2": (wanted_prefill, wanted_decode)}
    for role, before in (("prefill", prefill), ("decode", decode)):
        floor = min(before, wanted[role]) - max_unavailable
        assert fleet.fewest_ready[role] >= floor
    most = max(prefill, wanted_prefill) + max(decode, wanted_decode) + 2 * surge
    assert fleet.most <= most


@pytest.mark.parametrize("options", [{}, {"canary_percent": 10.0}])
def test_a_cluster_at_zero_is_updated_at_once(options):
    fleet = ToyFleet(0, 0)
    update = update_of(fleet, **options)
    fleet.run(update, lambda: update.phase == "done" and fleet.split is None, limit_s=10.0)
    assert not fleet.members


def test_no_request_goes_to_the_new_version_before_it_serves():
    fleet = ToyFleet(1, 2)
    update = update_of(fleet)
    fleet.step(update)
    assert fleet.split == {"1": 100, "2": 0}
    assert fleet.num("decode", "2") == 0  # the split comes first
    fleet.run(update, lambda: update.phase != "starting")
    assert counts(fleet)["2"] == (1, 1)


@pytest.mark.parametrize("room", [4, 5])
def test_where_there_is_no_room_beside_the_old_groups_one_of_them_goes_first(room):
    fleet = ToyFleet(2, 2, room=room)
    update = update_of(fleet)
    fleet.run(update, lambda: update.phase == "done")
    assert counts(fleet) == {"1": (0, 0), "2": (2, 2)}
    assert min(fleet.fewest_ready.values()) >= 1


def test_the_only_decode_group_does_not_go_before_the_new_one_serves_unless_allowed():
    fleet = ToyFleet(0, 1, room=1)
    update = update_of(fleet, start_timeout_s=30.0)
    fleet.run(update, lambda: update.is_over)
    assert update.phase == "rolled_back"
    assert "was not ready within 30 s" in update.reason
    assert fleet.fewest_ready["decode"] == 1

    update = update_of(fleet, max_unavailable=1, start_timeout_s=30.0)
    fleet.run(update, lambda: update.is_over)
    assert update.phase == "done"


def test_a_canary_waits_for_the_operator_and_goes_on_when_he_gives_it_everything():
    fleet = ToyFleet(1, 3)
    update = update_of(fleet, canary_percent=10.0)
    fleet.run(update, lambda: update.phase == "canary")
    for _ in range(1000):
        fleet.step(update)
    assert update.phase == "canary"
    assert fleet.split == {"1": 90, "2": 10}
    assert counts(fleet) == {"1": (1, 3), "2": (1, 1)}
    update.set_split({"1": 50, "2": 50}, fleet.now)
    fleet.step(update)
    assert fleet.split == {"1": 50, "2": 50}
    update.set_split({"2": 100}, fleet.now)
    fleet.run(update, lambda: update.phase == "done")
    assert counts(fleet) == {"1": (0, 0), "2": (1, 3)}


def test_an_automatic_canary_goes_on_after_enough_requests_and_time():
    fleet = ToyFleet(0, 2)
    update = update_of(fleet, canary_percent=10.0, is_automatic=True, canary_s=60.0, min_requests=20)
    fleet.run(update, lambda: update.phase == "canary")
    fleet.step(update)
    began_s = fleet.now
    fleet.loads["2"] = VersionLoad(num_requests=30, num_ended=19)
    for _ in range(200):
        fleet.step(update)
    assert update.phase == "canary"
    fleet.loads["2"] = VersionLoad(num_requests=30, num_ended=20)
    fleet.step(update)
    assert update.phase == "rolling"
    assert fleet.now - began_s >= 60.0


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (VersionLoad(900), VersionLoad(100, num_failed_attempts=10), "10 attempts failed on it with 100 requests"),
        (
            VersionLoad(900, ttft=times(880, 0.1)),
            VersionLoad(100, ttft=times(99, 0.5)),
            "its first tokens take 0.500 s (99 requests), those of the old version 0.100 s (880)",
        ),
    ],
)
def test_a_finding_rolls_back_by_itself(old, new, reason):
    fleet = ToyFleet(1, 2)
    update = update_of(fleet, canary_percent=10.0, is_automatic=True)
    fleet.run(update, lambda: update.phase == "canary")
    fleet.step(update)
    fleet.loads = {"1": old, "2": new}
    fleet.step(update)
    assert fleet.split == {"1": 100, "2": 0}
    assert counts(fleet)["2"] == (1, 1), "the requests go first, then the groups"
    fleet.run(update, lambda: update.phase == "rolled_back" and fleet.split is None)
    assert counts(fleet) == {"1": (1, 2), "2": (0, 0)}
    assert reason in update.reason


@pytest.mark.parametrize(
    "new",
    [
        VersionLoad(100, num_failed_attempts=2),
        VersionLoad(1000, num_failed_attempts=40),
        VersionLoad(100, ttft=times(19, 50.0)),
        VersionLoad(100, ttft=times(100, 0.25)),
    ],
)
def test_what_happens_to_any_version_is_no_finding(new):
    fleet = ToyFleet(0, 2)
    update = update_of(fleet, canary_percent=10.0, is_automatic=True)
    fleet.run(update, lambda: update.phase == "canary")
    fleet.step(update)
    fleet.loads = {"1": VersionLoad(900, 5, 900, 0, times(900, 0.1)), "2": new}
    for _ in range(20):
        fleet.step(update)
    assert update.phase == "canary"


def serve_step(fleet, update, old, new):
    """Requests of one step: so many more on each version."""
    before = dict(fleet.loads)
    fleet.step(update)  # the counts at the beginning of the step
    fleet.loads = {"1": added(before["1"], old), "2": added(before["2"], new)}


def added(one, other):
    def sum_of(a, b):
        return LogMoments(a.num + b.num, a.sum + b.sum, a.sum_squares + b.sum_squares)

    return VersionLoad(
        one.num_requests + other.num_requests,
        one.num_failed_attempts + other.num_failed_attempts,
        one.num_ended + other.num_ended,
        one.num_errors + other.num_errors,
        sum_of(one.ttft, other.ttft),
        sum_of(one.itl, other.itl),
        other.mirror,
    )


def test_requests_that_waited_for_another_router_say_nothing_about_the_versions():
    fleet = ToyFleet(0, 2)
    update = update_of(fleet, canary_percent=10.0, is_automatic=True, canary_s=0.0, min_requests=50)
    fleet.run(update, lambda: update.phase == "canary")
    serve_step(fleet, update, load_of(900), load_of(40))
    fleet.step(update)
    fleet.loads = {"1": load_of(100), "2": load_of(30, ttft_s=5.0)}  # it has counted since it began
    fleet.step(update)
    assert update.phase == "canary"
    serve_step(fleet, update, load_of(900), load_of(50))
    fleet.step(update)
    assert update.phase == "rolling"


def test_steps_raise_the_share_with_groups_to_match_and_end_without_an_old_group():
    fleet = ToyFleet(1, 4)
    update = update_of(fleet, steps=(5.0, 50.0, 75.0, 100.0), canary_s=10.0)
    seen = []
    for percent in (5, 50, 75):
        fleet.run(update, lambda percent=percent: fleet.split == {"1": 100 - percent, "2": percent})
        seen.append(counts(fleet)["2"])
        assert sum(fleet.num("decode", version, "ready") for version in "12") >= 4
        serve_step(fleet, update, load_of(900), load_of(60))
    fleet.run(update, lambda: update.phase == "done")
    assert seen == [(1, 1), (1, 2), (1, 3)]
    assert counts(fleet) == {"1": (0, 0), "2": (1, 4)}
    assert fleet.fewest_ready["decode"] == 4
    assert fleet.most <= 5 + 2
    texts = [event.text for event in update.events]
    assert "step 2 of 3: split 1=50 2=50, waiting for its verdict" in texts
    assert any("60 requests ended on the new version without a finding (TTFT 0.0" in text for text in texts)


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (load_of(100, ttft_s=0.16), "its first tokens take 0.1"),
        (load_of(100, itl_s=0.03), "its tokens take 29."),
        (load_of(100, num_errors=5), "5 errors with 100 requests, 0.0% on the old version"),
    ],
)
def test_a_bad_step_rolls_back_and_says_which_figure_was_bad(new, reason):
    fleet = ToyFleet(0, 4)
    update = update_of(fleet, steps=(5.0, 50.0), canary_s=10.0)
    fleet.run(update, lambda: fleet.split == {"1": 95, "2": 5})
    serve_step(fleet, update, load_of(900), load_of(100))
    fleet.run(update, lambda: fleet.split == {"1": 50, "2": 50})
    serve_step(fleet, update, load_of(900), new)
    fleet.run(update, lambda: update.is_over)
    assert update.phase == "rolled_back"
    assert update.reason.startswith(f"version 2: {reason}")
    assert counts(fleet) == {"1": (0, 4), "2": (0, 0)}


def test_a_step_is_not_judged_before_it_has_seen_enough():
    fleet = ToyFleet(0, 2)
    update = update_of(fleet, steps=(5.0, 50.0), canary_s=60.0)
    fleet.run(update, lambda: fleet.split == {"1": 95, "2": 5})
    serve_step(fleet, update, load_of(900), load_of(49, itl_s=0.03))
    for _ in range(1000):
        fleet.step(update)
    assert (update.phase, fleet.split) == ("canary", {"1": 95, "2": 5})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": (5.0, 5.0)}, "steps must be ascending percentages, as in 5,25,50,100, got 5,5"),
        ({"steps": (0.0, 5.0)}, "steps must be ascending percentages"),
        ({"steps": (50.0, 101.0)}, "steps must be ascending percentages"),
        ({"steps": (100.0,)}, "steps need one below 100"),
        ({"steps": (5.0,), "canary_percent": 5.0}, "steps and split exclude each other"),
        ({"mirror_percent": 0.0}, "mirror must be over 0 and at most 100 percent, got 0"),
        ({"is_automatic": True}, "auto needs a split or a mirror to look at"),
        ({"tolerance_percent": -1.0}, "tolerance_percent must be finite and not negative, got -1"),
    ],
)
def test_steps_that_make_no_sense_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        UpdateOptions(**options)


def test_a_mirrored_version_gets_copies_from_its_first_worker_on_and_waits_for_the_operator():
    fleet = ToyFleet(1, 2)
    update = update_of(fleet, mirror_percent=5.0)
    fleet.step(update)
    assert (fleet.mirror, fleet.split, fleet.num("decode", "2")) == (5.0, {"1": 100, "2": 0}, 0)
    fleet.run(update, lambda: update.phase == "mirror")
    copies = MirrorCounts(5.0, num_copied=60, num_compared=50, num_equal=48, first_differences=30)
    serve_step(fleet, update, load_of(900), replace(load_of(60), mirror=copies))
    for _ in range(1000):
        fleet.step(update)
    assert (update.phase, fleet.split) == ("mirror", {"1": 100, "2": 0})
    compared = "48 of 50 greedy answers equal, the others differ from token 15 on average"
    assert update.figures.startswith(f"60 requests copied, 0 failed, {compared}; TTFT 0")
    update.set_split({"2": 100}, fleet.now)
    fleet.step(update)
    assert (update.phase, fleet.mirror) == ("rolling", None)
    fleet.run(update, lambda: update.phase == "done")
    assert any(event.text.startswith("the mirror ends: 60 requests copied") for event in update.events)


def test_a_mirror_is_given_up_by_the_operator_or_goes_on_as_a_canary():
    fleet = ToyFleet(0, 2)
    update = update_of(fleet, mirror_percent=5.0)
    fleet.run(update, lambda: update.phase == "mirror")
    update.set_split({"1": 90, "2": 10}, fleet.now)
    fleet.step(update)
    assert (update.phase, fleet.mirror, fleet.split) == ("canary", None, {"1": 90, "2": 10})
    update.roll_back(fleet.now, "the operator says so")
    fleet.run(update, lambda: update.is_over)
    assert counts(fleet) == {"1": (0, 2), "2": (0, 0)}


@pytest.mark.parametrize(
    ("new", "phase"), [(load_of(60), "canary"), (load_of(60, itl_s=0.03), "rolled_back"), (load_of(49), "mirror")]
)
def test_a_mirror_before_steps_is_judged_by_its_copies(new, phase):
    fleet = ToyFleet(0, 2)
    update = update_of(fleet, mirror_percent=5.0, steps=(50.0,), canary_s=10.0)
    fleet.run(update, lambda: update.phase == "mirror")
    serve_step(fleet, update, load_of(900), replace(new, mirror=MirrorCounts(5.0)))
    for _ in range(30):
        fleet.step(update)
    assert update.phase == phase
    assert fleet.mirror == (5.0 if phase == "mirror" else None)


def test_a_router_that_has_forgotten_the_mirror_gets_it_again():
    fleet = ToyFleet(0, 2)
    update = update_of(fleet, mirror_percent=5.0)
    fleet.run(update, lambda: update.phase == "mirror")
    fleet.mirror = None
    fleet.step(update)
    assert fleet.mirror == 5.0


def test_equal_versions_are_hardly_ever_found_worse():
    """Of so many comparisons of versions that are the same, at 98 % confidence and beyond a tolerance, none fails."""
    drawn = random.Random(7)

    def sample(num, median_s):
        moments = LogMoments()
        for _ in range(num):
            moments.add(drawn.lognormvariate(math.log(median_s), 0.6))
        return moments

    def load(num, factor=1.0):
        return VersionLoad(num, 0, num, 0, sample(num, 0.3 * factor), sample(num, 0.03 * factor))

    found = [worse(load(50), load(500), 0.25) for _ in range(500)]
    assert sum(one is not None for one in found) <= 2
    slow = [worse(load(200, 1.6), load(500), 0.25) for _ in range(100)]
    assert all(slow)


def test_a_version_that_does_not_start_is_given_up_and_nobody_old_has_gone():
    fleet = ToyFleet(1, 2)
    fleet.starts = lambda version: version != "2"
    update = update_of(fleet)
    fleet.run(update, lambda: update.is_over)
    assert update.phase == "rolled_back"
    assert "could not be started (no such file)" in update.reason
    assert counts(fleet) == {"1": (1, 2), "2": (0, 0)}
    assert fleet.fewest_ready == {"prefill": 1, "decode": 2}


def test_a_roll_back_in_the_middle_brings_the_old_groups_back():
    fleet = ToyFleet(2, 4)
    update = update_of(fleet)
    fleet.run(update, lambda: counts(fleet)["2"][1] == 3)
    update.roll_back(fleet.now, "the operator says so")
    fleet.step(update)
    assert fleet.split == {"1": 100, "2": 0}
    fleet.run(update, lambda: update.is_over)
    assert counts(fleet) == {"1": (2, 4), "2": (0, 0)}
    assert fleet.fewest_ready["decode"] >= 4


def test_groups_that_die_are_waited_for_and_a_version_that_dies_again_and_again_is_given_up():
    fleet = ToyFleet(0, 2)
    update = update_of(fleet, canary_percent=50.0)
    fleet.run(update, lambda: update.phase == "canary")
    for _ in range(2):
        (name,) = (m.name for m in fleet.members.values() if m.version == "2")
        fleet.kill(name)
        fleet.run(update, lambda: counts(fleet)["2"][1] == 1)
        fleet.step(update)
        assert update.phase == "canary"
    fleet.kill(name)
    fleet.step(update)
    assert update.phase == "rolling_back"
    assert "died 3 times" in update.reason


def test_groups_that_wait_for_a_router_that_is_away_are_not_late():
    fleet = ToyFleet(1, 2)
    update = update_of(fleet, start_timeout_s=30.0)
    fleet.run(update, lambda: any(m.version == "2" and m.state == "starting" for m in fleet.members.values()))
    fleet.router_is_up = False
    late_s = fleet.now + 100.0
    while fleet.now < late_s:
        for state in ("starting", "ready"):
            fleet.exchange_state(state, "connecting")
        fleet.step(update)
    assert update.phase == "starting"
    fleet.router_is_up = True
    fleet.step(update)
    assert update.phase == "starting", "they have as long as ever to connect to it"
    for _ in range(100):
        fleet.exchange_state("ready", "connecting")
        fleet.step(update)
    assert update.phase == "rolling_back"


def test_groups_whose_model_is_downloaded_are_not_late():
    fleet = ToyFleet(1, 2)
    update = update_of(fleet, start_timeout_s=30.0)
    fleet.run(update, lambda: any(m.version == "2" and m.state == "starting" for m in fleet.members.values()))
    late_s = fleet.now + 100.0
    while fleet.now < late_s:
        fleet.exchange_state("starting", "fetching")
        fleet.step(update)
    assert update.phase == "starting"
    fleet.exchange_state("fetching", "loading")
    fleet.run(update, lambda: update.phase == "rolling_back", limit_s=60.0)


def test_groups_that_lose_the_router_have_not_died():
    fleet = ToyFleet(1, 2)
    update = update_of(fleet, canary_percent=50.0)
    fleet.run(update, lambda: update.phase == "canary")
    for is_there in (False, True) * 4:
        fleet.router_is_up = is_there
        fleet.exchange_state(*(("connecting", "ready") if is_there else ("ready", "connecting")))
        fleet.step(update)
    assert update.phase == "canary"
    fleet.exchange_state("ready", "connecting")
    fleet.step(update)
    for name in [m.name for m in fleet.members.values() if m.version == "2"]:  # a router's host takes them along
        fleet.kill(name)
    fleet.step(update)
    assert update.phase == "canary"
    fleet.run(update, lambda: counts(fleet)["2"] == (1, 1))
    fleet.step(update)
    fleet.kill(name)
    fleet.step(update)
    assert "died 3 times" in update.reason


def test_a_router_that_comes_back_without_its_split_gets_it_again_and_nobody_goes_meanwhile():
    fleet = ToyFleet(1, 2)
    update = update_of(fleet, canary_percent=10.0)
    fleet.run(update, lambda: update.phase == "canary")
    fleet.router_is_up, fleet.split = False, None
    members = dict(fleet.members)
    update.roll_back(fleet.now, "no good")
    for _ in range(20):
        fleet.step(update)
    assert fleet.members == members
    fleet.router_is_up = True
    fleet.step(update)
    assert fleet.split == {"1": 100, "2": 0}
    fleet.run(update, lambda: update.is_over)


def test_an_update_that_is_over_still_takes_its_split_back():
    fleet = ToyFleet(0, 1)
    update = update_of(fleet)
    fleet.run(update, lambda: update.phase == "done")
    fleet.split = {"1": 100, "2": 0}
    fleet.step(update)
    assert fleet.split is None


GONE = "/m/model.safetensors has other content now"


def test_where_the_old_files_are_gone_a_roll_back_ends_with_the_old_groups_that_are_left():
    fleet = ToyFleet(1, 4)
    update = update_of(fleet)
    update.old_files_gone = GONE
    fleet.starts = lambda version: version == "2"
    fleet.run(update, lambda: counts(fleet)["1"][1] == 2)
    update.roll_back(fleet.now, "no good")
    fleet.run(update, lambda: update.phase == "rolled_back")
    _, num_decode = counts(fleet)["1"]
    assert 0 < num_decode <= 2
    assert counts(fleet)["2"] == (0, 0)
    assert f"decode {num_decode} of 4" in update.events[-1].text
    assert GONE in update.events[-1].text


def test_where_no_old_group_is_left_and_none_can_be_started_the_new_version_stays():
    fleet = ToyFleet(0, 1)
    update = update_of(fleet, canary_percent=10.0)
    update.old_files_gone = GONE
    fleet.starts = lambda version: version == "2"
    fleet.kill("decode-1")
    fleet.run(update, lambda: update.phase == "canary")
    with pytest.raises(ValueError, match=f"no decode worker of version 1 is left, and {GONE}"):
        update.roll_back(fleet.now, "tried")
    assert update.phase == "canary"
    update.give_up(fleet.now, "too slow")
    fleet.run(update, lambda: fleet.split is None)
    assert update.phase == "done"
    assert counts(fleet)["2"] == (0, 1)
    assert "there is no way back to 1" in update.events[-1].text


def test_an_update_of_a_cluster_whose_groups_cannot_come_back_goes_through():
    fleet = ToyFleet(1, 2)
    fleet.starts = lambda version: version == "2"
    update = update_of(fleet)
    update.old_files_gone = GONE
    for name in list(fleet.members):
        fleet.kill(name)
    fleet.run(update, lambda: update.phase == "done")
    assert counts(fleet) == {"1": (0, 0), "2": (1, 2)}


@given(deaths=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 5)), max_size=2), back=st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_whatever_dies_and_whenever_one_turns_round_all_ends_with_one_version(deaths, back):
    fleet = ToyFleet(2, 3)
    update = update_of(fleet)
    for at in range(200):
        for when, which in deaths:
            serving = [m.name for m in fleet.members.values() if m.state == "ready"]
            if when == at and which < len(serving):
                fleet.kill(serving[which])
        if at == back and not update.is_over:
            update.roll_back(fleet.now, "tried")
        fleet.step(update)
    fleet.run(update, lambda: update.is_over)
    versions = {m.version for m in fleet.members.values()}
    assert versions == ({"2"} if update.phase == "done" else {"1"})
    assert all(a.at_s <= b.at_s for a, b in pairwise(update.events))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"surge": -1}, "surge"),
        ({"surge": 0}, "surge"),
        ({"max_unavailable": -1}, "max_unavailable"),
        ({"canary_percent": 0.0}, "split"),
        ({"canary_percent": 100.0}, "split"),
        ({"is_automatic": True}, "auto"),
        ({"canary_s": -1.0}, "canary_s"),
        ({"min_requests": 0}, "min_requests"),
        ({"start_timeout_s": float("nan")}, "start_timeout_s"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options, field):
    with pytest.raises(ValueError, match=f"^{field}"):
        UpdateOptions(**options)
