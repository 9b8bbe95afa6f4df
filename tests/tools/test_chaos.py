"""A short chaos run in every test run, and a plan that depends on its seed alone."""

import subprocess
import sys

import pytest
from chaos.__main__ import run
from chaos.driver import Chaos
from chaos.errands import LABELS, ORPHAN_SECONDS, Errands, Order, is_whole
from chaos.filers import Filers
from chaos.plan import (
    ARCHIVE_FAULTS,
    CLOCK_FAULTS,
    ERRAND_FAULTS,
    FAULTS,
    HOST_FAULTS,
    MEMORY_FAULTS,
    MOVE_FAULTS,
    NETWORK_FAULTS,
    SLOT_FAULTS,
    make_plan,
)
from chaos.pushed import Pushed
from chaos.recovery import Death, recoveries, since, spreads
from chaos.travellers import Travellers
from chaos.trees import Trees
from msgspec.structs import replace
from support.hosts import Hosts, why_no_hosts
from support.receiver import Received, Receiver
from support.servers import clock_library
from support.stage import Stage

from antiphon.client import AsyncClient
from antiphon.events import (
    AgentChanged,
    ChildEvent,
    EventReceived,
    StepRecorded,
    ToolCallEvent,
    TurnFinished,
    TurnResumed,
    TurnRetrying,
    TurnSleeping,
    TurnStarted,
)
from antiphon.model import Message, Text, Wait
from antiphon.model.recording import Variant, VariantRun
from antiphon.session.turn_info import TurnInfo, TurnTree

NO_HOSTS = why_no_hosts()


def test_a_seed_names_its_faults():
    assert make_plan(7, 60) == make_plan(7, 60)
    assert make_plan(7, 60) != make_plan(8, 60)
    assert {fault.kind for fault in make_plan(7, 600)} == set(FAULTS)
    several = (set(FAULTS) - set(NETWORK_FAULTS)) | set(HOST_FAULTS)
    assert {fault.kind for fault in make_plan(7, 600, apart=True)} == several
    assert {fault.kind for fault in make_plan(7, 600, cluster=True)} == {*FAULTS, *SLOT_FAULTS}
    assert {fault.kind for fault in make_plan(7, 600, moves=True)} == {*FAULTS, *MOVE_FAULTS}
    assert {fault.kind for fault in make_plan(7, 600, clock=True)} == {*FAULTS, *CLOCK_FAULTS}
    assert {fault.kind for fault in make_plan(7, 600, archive=True)} == {*FAULTS, *ARCHIVE_FAULTS}
    assert {fault.kind for fault in make_plan(7, 600, memory=True)} == {*FAULTS, *MEMORY_FAULTS}
    assert {fault.kind for fault in make_plan(7, 600, errands=True)} == {*FAULTS, *ERRAND_FAULTS}


def run_again(turn, next_worker, died=1000, again=1500):
    """The log of a turn whose worker ``h-1-a`` has died at 1000 ms."""
    return [
        TurnStarted(at=died - 100, turn_id=turn, worker="h-1-a"),
        TurnRetrying(at=died + 100, turn_id=turn, code="worker_died"),
        TurnStarted(at=again, turn_id=turn, worker=next_worker),
    ]


def test_what_a_turn_had_to_wait_for_is_told_apart():
    logs = [run_again("t1", "h-2-b"), run_again("t2", "h-2-c"), run_again("t3", "h-2-b-alone")]
    found = recoveries(logs, [Death("a process died", "h-1-a", 1000)], {"h-2-b": 500, "h-2-c": 1400}, [])
    assert {one.turn_id: one.by for one in found} == {
        "t1": "by another process", "t2": "by a new process", "t3": "alone",
    }  # fmt: skip
    times = spreads(found)["a process died, alone"]
    assert times == {"count": 1, "handed_back": 0.1, "p50": 0.5, "p99": 0.5, "longest": 0.5}


def test_a_recovery_while_redis_was_away_is_not_counted():
    log, deaths = run_again("t1", "h-2-b"), [Death("a host was lost", "h-1-", 1000)]
    assert len(recoveries([log], deaths, {}, [(1600, 2000)])) == 1
    assert recoveries([log], deaths, {}, [(1400, 2000)]) == []
    assert recoveries([log], [Death("a process died", "h-3-a", 1000)], {}, []) == []


def test_when_a_worker_began_is_read_from_its_log():
    log = "2026-11-21 13:17:22,067 INFO    worker vm-7995-02bdde5e takes turns: queues antiphon, …\nmore\n"
    (began,) = since([log]).items()
    assert began[0] == "vm-7995-02bdde5e"
    assert began[1] % 1000 == 67


LABELLED = [ToolCallEvent(name="errand", arguments=f'{{"by":"{label}"}}') for label in LABELS]
ASLEEP = TurnSleeping(at=1000, waits=[Wait("c", "sleep", seconds=2.0)])


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([StepRecorded(call_id="c", name="pack")] * 2, "has this 2 times: ('c', 'pack')"),
        ([EventReceived(wait_id="event paid:o")] * 2, "has this 2 times: event paid:o"),
        ([ASLEEP, ASLEEP], "falls asleep twice"),
        ([ASLEEP, TurnResumed(at=3000), TurnResumed(at=3000)], "wakes up twice"),
        ([ASLEEP, TurnResumed(at=2999)], "wakes up early"),
        (LABELLED[:2], "goes on with label-2 after label-1"),
        ([ASLEEP, TurnResumed(at=3000), LABELLED[0], AgentChanged(), LABELLED[1]], ""),
    ],
)
def test_what_an_errand_may_not_show_is_noticed(tmp_path, events, says):
    errands = Errands(AsyncClient("redis://127.0.0.1:1"), Stage(tmp_path), 1)
    errands.check_events(Order("o", "e1"), events)
    assert [says in one for one in errands.trouble] == ([True] if says else [])


@pytest.mark.parametrize(
    ("shown", "finished", "whole"),
    [
        ([(1, "turn_queued"), (2, "turn_started"), (3, "turn_finished")], True, True),
        ([(1, "turn_queued"), (2, "turn_started")], False, True),
        ([(1, "turn_queued"), (2, "turn_started")], True, False),
        ([(2, "turn_started"), (3, "turn_finished")], True, False),
        ([(1, "turn_queued"), (2, "turn_started"), (2, "turn_started"), (3, "turn_finished")], True, False),
        ([(1, "turn_queued"), (3, "step_finished"), (2, "turn_started"), (4, "turn_finished")], True, False),
        ([(1, "turn_queued"), (2, "turn_finished"), (3, "turn_finished")], True, False),
    ],
)
def test_a_child_that_is_not_shown_whole_is_noticed(shown, finished, whole):
    seen = [{"seq": seq, "type": kind} for seq, kind in shown]
    assert is_whole(seen, finished=finished) is whole


def test_steps_that_run_again_and_calls_beyond_the_budget_are_noticed(tmp_path):
    stage = Stage(tmp_path)
    errands = Errands(AsyncClient("redis://127.0.0.1:1"), stage, 1)
    errands.limits = [(0.0, 50)]
    for value in "aab":
        stage.note("saw", turn="t", step="pack", value=value)
    for tokens in (49, 40, 1):
        stage.note("step", turn="t", step="charge")
        stage.note("billed", order="o", tokens=tokens)
    errands.check_notes()
    assert errands.trouble == [
        "turn t: pack had several results: ['a', 'b']",
        "turn t charged 3 times",
        "o: 89 tokens were billed, and the budget was 50",
    ]


NORTH = AgentChanged(agent="north", queue="far")
RUN = VariantRun("v", "north", "r", "w", 1)
SAID = Message("assistant", [Text("north of label-1 has seen it")])


@pytest.mark.parametrize(
    ("events", "status", "queue", "says"),
    [
        ([NORTH], "finished", "far", ""),
        ([NORTH, AgentChanged(agent="north", revision="r2")], "finished", "far", ""),
        ([], "finished", "antiphon", "was routed 0 times"),
        ([NORTH, NORTH], "finished", "far", "was routed 2 times"),
        ([NORTH], "finished", "antiphon", "was sent to far, and is in antiphon"),
        ([AgentChanged(agent="south")], "finished", "antiphon", "was sent to south, and says north"),
        ([NORTH], "running", "far", "is running"),
    ],
)
def test_what_a_journey_may_not_show_is_noticed(events, status, queue, says):
    travellers = Travellers(AsyncClient("redis://127.0.0.1:1"), 1)
    info = TurnInfo(turn_id="t", session_id="s", status=status, messages=[SAID])
    travellers.check_route(info, queue, events)
    assert [says in one for one in travellers.trouble] == ([True] if says else [])


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ([RUN, RUN], True),
        ([RUN, RUN, RUN], False),
        ([replace(RUN, status="finished", variant=Variant("m", text="north of label-1 has seen it"))], True),
        (
            [
                replace(
                    RUN, status="finished", variant=Variant("m", error="store_unavailable: Redis is away.")
                )
            ],
            True,
        ),
        ([replace(RUN, status="finished", variant=Variant("m", text="south of label-1 has seen it"))], False),
        ([replace(RUN, status="finished")], False),
    ],
)
def test_variants_that_nobody_asked_for_are_noticed(found, right):
    travellers = Travellers(AsyncClient("redis://127.0.0.1:1"), 1)
    travellers.check_variants("t", found)
    assert (travellers.trouble == []) is right


def leaf(name, status="finished", ended=2_000):
    return TurnTree(name, f"s-{name}", status, ended=ended)


def branch(name, **more):
    return TurnTree(
        name, f"s-{name}", "finished", ended=3_000, children=[leaf(f"{name}{n}", **more) for n in "ab"]
    )


WHOLE = TurnTree("r", "s", "finished", ended=4_000, children=[branch("x"), branch("y")])
ENDED = TurnFinished(turn_id="r")
LATE = int(1_000 * ORPHAN_SECONDS) + 4_001


def shows(*kinds):
    return [
        ChildEvent(turn_id="r", child_id="x", event={"type": kind, "seq": seq})
        for seq, kind in enumerate(kinds, 1)
    ]


@pytest.mark.parametrize(
    ("tree", "events", "says"),
    [
        (WHOLE, [ENDED], ""),
        (WHOLE, [*shows("turn_queued", "turn_started", "turn_finished"), ENDED], ""),
        (replace(WHOLE, status="cancelled", children=[branch("x", status="cancelled")]), [ENDED], ""),
        (WHOLE, [ENDED, ENDED], "has ended 2 times"),
        (WHOLE, [*shows("turn_queued", "turn_queued", "turn_finished"), ENDED], "shows x as"),
        (replace(WHOLE, children=[branch("x")]), [ENDED], "has finished with 3 turns below it"),
        (replace(WHOLE, children=[branch("x"), branch("y"), branch("z")]), [ENDED], "has 9 turns below it"),
        (replace(WHOLE, children=[branch("x"), branch("x")]), [ENDED], "has 6 turns below it"),
        (
            replace(WHOLE, children=[branch("x"), branch("y", status="suspended")]),
            [ENDED],
            "has left ya behind: it is suspended",
        ),
        (replace(WHOLE, children=[branch("x"), branch("y", ended=LATE)]), [ENDED], "has left ya behind"),
    ],
)
def test_what_a_tree_may_not_show_is_noticed(tree, events, says):
    trees = Trees(AsyncClient("redis://127.0.0.1:1"), 1)
    trees.check_tree(tree, events)
    assert any(says in one for one in trees.trouble) if says else trees.trouble == []


def test_a_cancelled_tree_that_has_finished_is_noticed():
    trees = Trees(AsyncClient("redis://127.0.0.1:1"), 1)
    trees.cancelled.add("r")
    trees.check_tree(WHOLE, [ENDED])
    assert trees.trouble == ["the tree r was cancelled, and is finished"]


UPDATE = '{"statusUpdate": {"taskId": "%s", "status": {"state": "TASK_STATE_%s"}}}'


@pytest.mark.parametrize(
    ("told", "refused", "says"),
    [
        ([("/a", "t", "COMPLETED", "/a")], 0, ""),
        ([("/a", "t", "COMPLETED", "/a")] * 2, 1, ""),
        ([("/a", "t", "COMPLETED", "/a")], 1, "/a was never told TASK_STATE_COMPLETED"),
        ([], 0, "/a was never told TASK_STATE_COMPLETED"),
        ([("/a", "t", "COMPLETED", "/a"), ("/a", "t", "FAILED", "/a")], 0, "/a was told TASK_STATE_FAILED"),
        ([("/a", "t", "COMPLETED", "/a"), ("/b", "t", "COMPLETED", "/a")], 0, "/b was told of t"),
        ([("/a", "u", "COMPLETED", "/a")], 0, "/a was told of u"),
        ([("/a", "t", "COMPLETED", "/b")], 0, "/a was told of t"),
    ],
)
def test_a_notification_that_is_missing_or_at_a_wrong_endpoint_is_noticed(told, refused, says):
    with Receiver() as receiver:
        pushed = Pushed(AsyncClient("redis://127.0.0.1:1"), 1, receiver)
        for path, turn, state, token in told:
            headers = {"x-a2a-notification-token": f"token of {token}"}
            receiver.received.append(Received(path, headers, (UPDATE % (turn, state)).encode()))
        receiver.acknowledged += receiver.received[refused:]
        pushed.check_heard({"/a": ("t", "finished")})
    assert any(says in one for one in pushed.trouble) if says else pushed.trouble == []


@pytest.mark.lasting_keys("ant:byte_root")
async def test_files_that_are_lost_in_their_store_are_noticed(redis_url, tmp_path):
    async with AsyncClient(redis_url) as client:
        filers, rounds = Filers(client, tmp_path, 3), iter(range(200))
        await filers.run(lambda: next(rounds, None) is None)
        await filers.check(client)
        assert filers.trouble == []
        assert filers.counts["torn"] > 0 < filers.counts["read"]
        for path in tmp_path.glob("*/*/*"):
            path.unlink()
        await filers.check(client)
        assert len(filers.trouble) == sum(map(len, filers.kept.values())) > 0


@pytest.mark.short
@pytest.mark.timeout(180)
async def test_every_promise_holds_while_everything_breaks(server_kind, tmp_path):
    seconds = 20 if server_kind == "valkey" else 10
    with Chaos(5, seconds, tmp_path, server=server_kind, memory=True, errands=True, files=True) as chaos:
        report = await run(chaos)
    print(report.table())
    assert report.ok, report.table()
    assert report.snapshots > 2 * len(chaos.conversations)
    assert report.accepted > 20
    assert report.others["errands"]["steps"] > 0
    assert report.others["travellers"]["finished"] > 0
    assert report.others["trees"]["turns"] > 0
    assert report.others["pushed"]["told"] > 0
    assert report.others["files"]["read"] > 0


needs_hosts = pytest.mark.skipif(bool(NO_HOSTS), reason=NO_HOSTS or "there are hosts")


@needs_hosts
@pytest.mark.short
@pytest.mark.timeout(240)
@pytest.mark.one_server
async def test_every_promise_holds_between_hosts_that_lose_sight_of_each_other(tmp_path):
    with Chaos(3, 10, tmp_path, apart=True) as chaos:
        report = await run(chaos)
    print(report.table())
    assert report.ok, report.table()
    assert report.snapshots > 2 * len(chaos.conversations)
    assert report.accepted > 10
    assert report.faults["part hosts"] + report.faults["part hosts one way"] > 2


@needs_hosts
@pytest.mark.short
@pytest.mark.timeout(240)
@pytest.mark.one_server
async def test_every_promise_holds_on_a_cluster_whose_slots_move(tmp_path):
    with Chaos(3, 10, tmp_path, apart=True, cluster=True) as chaos:
        report = await run(chaos)
    print(report.table())
    assert report.ok, report.table()
    assert report.snapshots > 2 * len(chaos.conversations)
    assert report.accepted > 10
    assert report.faults["move a slot"] + report.faults["move a slot key by key"] > 1


@pytest.mark.short
@pytest.mark.timeout(240)
@pytest.mark.one_server
async def test_every_promise_holds_while_the_cell_moves_to_a_cluster_and_back(tmp_path):
    with Chaos(2, 15, tmp_path, moves=True, errands=True, files=True, batches=True) as chaos:
        report = await run(chaos)
        moved = chaos.network.moved
    print(report.table())
    assert report.ok, report.table()
    assert report.snapshots > 2 * len(chaos.conversations)
    assert report.accepted > 10
    assert moved > 1, "there, and back"


@needs_hosts
@pytest.mark.one_server
def test_what_is_lost_between_hosts_is_lost_silently_and_only_in_its_direction():
    with Hosts("a", "b") as hosts:
        hosts.slow("a")
        hosts.part_one_way("a", "b")
        assert reach(hosts, "a", "b") == (0, "")
        assert reach(hosts, "b", "a") == (1, "")  # the question arrives, and its answer does not
        assert reach(hosts, "here", "b") == (1, "answer")
        hosts.heal()
        hosts.part("here", "b")
        assert reach(hosts, "here", "b") == (0, "")
        assert reach(hosts, "a", "b") == (1, "answer")
        hosts.heal()
        assert reach(hosts, "here", "b") == (1, "answer")


def reach(hosts: Hosts, one: str, other: str) -> tuple[int, str]:
    """Ask another host: whether the question has arrived, and what came back."""
    listens = "import socket, sys; s = socket.socket(type=2); s.bind((sys.argv[1], int(sys.argv[2])))"
    waits = f"{listens}; print(flush=True); s.settimeout(1)"
    answers = f"{waits}; _, sender = s.recvfrom(9); print('got'); s.sendto(b'answer', sender)"
    asks = f"{listens}; s.settimeout(1); s.sendto(b'?', (sys.argv[3], 7)); print(s.recv(9).decode())"
    python = (sys.executable, "-c")
    with subprocess.Popen(
        [*hosts[other].inside, *python, answers, hosts[other].address, "7"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as server:  # fmt: skip
        server.stdout.readline()
        asked = subprocess.run(
            [*hosts[one].inside, *python, asks, hosts[one].address, "8", hosts[other].address],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        arrived = "got" in server.stdout.read()
    return int(arrived), asked.stdout.strip()


@pytest.mark.timeout(180)
@pytest.mark.one_server
@pytest.mark.skipif(clock_library() is None, reason="libfaketime is not installed")
async def test_every_promise_holds_while_the_servers_clock_jumps(tmp_path):
    with Chaos(6, 15, tmp_path, clock=True) as chaos:
        report = await run(chaos)
    print(report.table())
    assert report.ok, report.table()
    assert report.snapshots > 2 * len(chaos.conversations)
    assert report.accepted > 20
