"""Which revision a session takes at its next turn, as an operator has decided."""

from itertools import pairwise

import pytest

from antiphon.errors import UsageError
from antiphon.model.revisions import Promotion, is_in_share, paused, promoted, rolled_back, without
from antiphon.redis.agents import AgentRevision

SESSIONS = [f"user-{n}" for n in range(10_000)]
FOUR_DEVIATIONS = 4 * (10_000 * 0.05 * 0.95) ** 0.5


@pytest.mark.parametrize(
    "names", [SESSIONS, [f"{n:032x}" for n in range(10_000)], [f"é{n}" for n in range(10_000)]]
)
@pytest.mark.parametrize("agent", ["support", "sales"])
def test_a_canary_of_5_percent_stays_within_its_bounds_over_10_000_sessions(names, agent):
    canary = Promotion(revision="old", canary="new", share=0.05)
    taken = sum(canary.choice(agent, name) == "new" for name in names)
    assert abs(taken - 500) < FOUR_DEVIATIONS
    assert {canary.choice(agent, name) for name in names} == {"old", "new"}


def test_a_share_that_grows_keeps_its_sessions():
    shares = [
        {one for one in SESSIONS if is_in_share("support", one, share)} for share in (0.01, 0.05, 0.5, 1)
    ]
    assert all(small < large for small, large in pairwise(shares))
    assert shares[-1] == set(SESSIONS)


def test_another_agent_has_other_sessions_in_its_share():
    one, other = ({s for s in SESSIONS if is_in_share(agent, s, 0.05)} for agent in ("support", "sales"))
    assert len(one & other) < len(one) / 5


def test_the_narrower_decision_counts():
    known = Promotion(revision="base", tenants={"acme": "for acme"}, sessions={"s": "for s"})
    assert known.choice("a", "s", tenant="acme", pinned="kept") == "for s"
    assert known.choice("a", "t", tenant="acme", pinned="kept") == "kept"
    assert known.choice("a", "t", tenant="acme") == "for acme"
    assert known.choice("a", "t", tenant="other") == "base"
    assert Promotion().choice("a", "t") == ""


def test_a_paused_share_takes_no_further_session():
    canary = paused(Promotion(revision="old", canary="new", share=0.999999), "a")
    assert canary.choice("a", "s", ran="old") == canary.choice("a", "s") == "old"
    assert canary.choice("a", "s", ran="new") == "new"
    assert promoted(canary, "new", share=0.999999).choice("a", "s") == "new"


def test_a_share_is_rolled_back_to_the_revision_of_the_others():
    before = Promotion("old", "new", 0.5, tenants={"acme": "new", "other": "x"}, sessions={"s": "new"})
    after = rolled_back(before, "a")
    assert after == Promotion("old", tenants={"other": "x"}, withdrawn=["new"])
    assert after.choice("a", "s", pinned="new", ran="new") == "old"
    assert after.choice("a", "s", pinned="older") == "older"


def test_a_whole_promotion_is_rolled_back_once():
    after = rolled_back(promoted(promoted(Promotion(), "one"), "two"), "a")
    assert (after.revision, after.withdrawn) == ("one", ["two"])
    with pytest.raises(UsageError, match="Nothing to roll back"):
        rolled_back(after, "a")
    again = promoted(after, "two")
    assert (again.revision, again.previous, again.withdrawn) == ("two", "one", [])


def test_repeating_a_promotion_keeps_what_a_roll_back_returns_to():
    twice = promoted(promoted(promoted(Promotion(), "one"), "two"), "two")
    assert rolled_back(twice, "a").revision == "one"


def test_what_is_named_is_bounded():
    known = Promotion(tenants={f"t{n}": "x" for n in range(100)})
    assert promoted(known, "y", tenant="t5").tenants["t5"] == "y"
    with pytest.raises(UsageError, match="100 tenants"):
        promoted(known, "y", tenant="more")


def test_an_erased_tenant_and_session_leave_nothing():
    known = Promotion(revision="r", tenants={"acme": "x"}, sessions={"s": "x", "t": "x"})
    assert without(known, tenant="acme", sessions=["s"]) == Promotion(revision="r", sessions={"t": "x"})


def test_without_a_share_there_is_nothing_to_pause():
    with pytest.raises(UsageError, match="Nothing to pause"):
        paused(Promotion(revision="x"), "a")


@pytest.mark.parametrize(
    ("row", "needs"),
    [
        ({}, ["next turns"]),
        ({"share": 0.0, "promoted": True}, ["next turns"]),
        ({"share": 0.0, "turns": 1}, ["turns"]),
        ({"share": 0.0, "pinned": 1, "sessions": 1}, ["sessions"]),
        ({"share": 0.0, "sessions": 1}, []),
    ],
)
def test_a_revision_is_needed_while_anything_may_run_on_it(row, needs):
    assert AgentRevision("support", "r", **row).needed_by == needs
