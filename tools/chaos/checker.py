"""Read everything back and count the broken promises."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field

from redis import Redis
from support.ensemble import complaints
from support.leaks import leaked_keys

from antiphon.client import AsyncClient
from antiphon.errors import TurnNotFound
from antiphon.events import Event, decode_event
from antiphon.input.ids import TurnId
from antiphon.model import Message
from antiphon_worker.webhooks import AT_ONCE
from chaos.appends import Append, faults
from chaos.driver import Chaos
from chaos.load import ASKS, Conversation
from chaos.recovery import recoveries, spreads

TERMINAL = ("finished", "failed", "cancelled")
CRASH_LIMIT = 10
STOPPED = ("interrupted by turn", "rolled back for turn")
TO_BE_EXPECTED = ("provider_rejected", "worker_crashed", "loop_stalled")


@dataclass
class Report:
    """The results of a run. ``wrong`` has a sentence for each broken promise."""

    seed: int
    seconds: float
    faults: dict[str, int]
    accepted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    steered: int = 0
    stopped: int = 0
    decided: int = 0
    answered: int = 0
    delivered: int = 0
    delivered_twice: int = 0
    archived: int = 0
    restored: int = 0
    indexed: int = 0
    facts: int = 0
    documents_left: int = 0
    sessions_deleted: int = 0
    repeated_submits: int = 0
    attempts_lost_to_crashes: int = 0
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    events: int = 0
    snapshots: int = 0
    events_missing: int = 0
    events_doubled: int = 0
    leaked_keys: int = 0
    leaked_places: int = 0
    others: dict[str, dict[str, int]] = field(default_factory=dict)
    recovery_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.wrong

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "ok": self.ok}, indent=2)

    def table(self) -> str:
        """Return the report as text for people."""
        rows = [
            (name.replace("_", " "), value) for name, value in asdict(self).items() if isinstance(value, int)
        ]
        lines = [f"{name:26}{value:>8}" for name, value in rows]
        lines.append(f"{'faults':26}{sum(self.faults.values()):>8}")
        lines += [f"  {kind:24}{times:>8}" for kind, times in sorted(self.faults.items())]
        for name, counts in self.others.items():
            lines.append(f"{name}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
        for what, times in self.recovery_seconds.items():
            shown = ", ".join(
                f"{name.replace('_', ' ')} {value:.2f} s" for name, value in times.items() if name != "count"
            )
            lines.append(f"{what} ({times['count']:.0f} times): {shown}")
        lines += self.wrong[:20]
        lines.append("Every promise held." if self.ok else f"{len(self.wrong)} promises were broken.")
        return "\n".join(lines)


async def check(chaos: Chaos) -> Report:
    """Return the report of a finished run."""
    report = Report(chaos.seed, chaos.seconds, dict(Counter(hit.fault.kind for hit in chaos.hits)))
    logs: dict[str, list[Event]] = {}
    async with AsyncClient(chaos.network.clients_url()) as client:
        for one in chaos.conversations:
            report.wrong += one.trouble
            await _check_turns(client, one, report)
            await _check_appends(client, one, report)
            report.wrong += await complaints(client, one.session)
            logs[one.session] = await _log(client, one)
            _check_order(one, logs[one.session], report)
            _check_reader(one, logs[one.session], report)
            _check_stopped(one, logs[one.session], (await client.snapshot(one.session)).messages, report)
        await _check_memory(chaos, client, report)
        for name, other in chaos.others.items():
            await other.check(client)
            report.others[name] = dict(other.counts)
            report.wrong += other.trouble
    _check_tools(chaos, report)
    _check_decisions(chaos, report)
    _check_webhook(chaos, logs, report)
    _check_archive(chaos, report)
    _check_keys(chaos, report)
    _check_places(chaos, report)
    if not chaos.clock:  # the log's times are the server's
        found = recoveries(logs.values(), chaos.deaths, chaos.taking_since, chaos.disturbances)
        report.recovery_seconds = spreads(found)
    return report


async def _check_turns(client: AsyncClient, one: Conversation, report: Report) -> None:
    for submitted in one.turns:
        report.repeated_submits += submitted.repeats
        if not submitted.accepted:
            if submitted.refused:
                report.wrong.append(f"{one.session}: {submitted.text!r} was refused: {submitted.refused}")
            continue
        report.accepted += 1
        try:
            record = await client.connections.cell_of_session(one.session).turn(submitted.turn_id)  # type: ignore[arg-type]
        except TurnNotFound:
            report.lost += 1
            report.wrong.append(f"{one.session}: accepted and lost: {submitted.text!r}")
            continue
        if record.status not in TERMINAL:
            report.lost += 1
            report.wrong.append(f"{one.session}: {submitted.text!r} never ended: it is {record.status}")
            continue
        report.steered += "steered_into" in record.fields
        report.stopped += record.error.startswith(STOPPED)
        if submitted.cancelled and record.status != "cancelled":
            report.wrong.append(
                f"{one.session}: {submitted.text!r} was cancelled, and is {record.status}: {record.error}"
            )
        setattr(report, record.status, getattr(report, record.status) + 1)
        report.attempts_lost_to_crashes += int(record.fields.get("crashes") or 0)
        if record.status == "failed" and record.error_code not in TO_BE_EXPECTED:
            report.wrong.append(
                f"{one.session}: {submitted.text!r} failed: {record.error_code}: {record.error}"
            )


async def _check_appends(client: AsyncClient, one: Conversation, report: Report) -> None:
    """Check from outside that the session is one list to which its turns are appended."""
    one.client = client
    await one.read()
    steered = {event.turn_id for event in one.seen if event.type == "turn_finished" and event.steered_into}
    appends = [
        Append(turn.turn_id, turn.began, turn.ended)
        for turn in one.turns if turn.turn_id and turn.turn_id not in steered
    ]  # fmt: skip
    report.snapshots += len(one.reads)
    report.wrong += [f"{one.session}: {fault}" for fault in faults(appends, one.reads)]


async def _log(client: AsyncClient, one: Conversation) -> list[Event]:
    cell = client.connections.cell_of_session(one.session)  # type: ignore[arg-type]
    entries = await cell.redis.xrange(cell.keys.events(one.session))  # type: ignore[arg-type]
    return [decode_event(fields[b"e"]) for _, fields in entries]


def _check_order(one: Conversation, log: list[Event], report: Report) -> None:
    """Check that turns enter the inbox in the order their client submitted them, and that each ends once."""
    submitted = [turn.turn_id for turn in one.turns if turn.accepted]
    queued = [event.turn_id for event in log if event.type == "turn_queued"]
    known = [turn for turn in queued if turn in set(submitted)]
    if known != submitted:
        report.out_of_order += 1
        report.wrong.append(f"{one.session}: the turns entered the inbox in another order than submitted")
    ends = Counter(event.turn_id for event in log if event.terminal)
    for turn, times in ends.items():
        if times > 1:
            report.repeated += 1
            report.wrong.append(f"{one.session}: turn {turn} ended {times} times")


def _check_stopped(one: Conversation, log: list[Event], history: list[Message], report: Report) -> None:
    """Check that interrupted turns left messages, rolled-back ones none, and that the named turn asked for it."""
    modes = {turn.turn_id: turn.if_busy for turn in one.turns}
    told = {message.turn_id for message in history}
    crashed = Counter(event.turn_id for event in log if event.type == "turn_retrying")
    for event in log:
        if event.type != "turn_cancelled" or not event.reason.startswith(STOPPED):
            continue
        interrupted, by = event.reason.startswith("interrupted"), event.reason.rpartition(" ")[2]
        if modes.get(TurnId(by)) != ("interrupt" if interrupted else "rollback"):
            report.wrong.append(
                f"{one.session}: turn {event.turn_id} was {event.reason}, which did not ask for it"
            )
        if (event.turn_id in told) is not interrupted and crashed[event.turn_id] < CRASH_LIMIT - 1:
            report.wrong.append(
                f"{one.session}: turn {event.turn_id} was {event.reason}: what stays is wrong"
            )


def _check_reader(one: Conversation, log: list[Event], report: Report) -> None:
    """Check that the reader saw every event of the log, once and in order."""
    report.events += len(log)
    seen = Counter(event.seq for event in one.seen)
    missing = [event.seq for event in log if event.seq not in seen]
    doubled = [seq for seq, times in seen.items() if times > 1]
    report.events_missing += len(missing)
    report.events_doubled += len(doubled)
    if missing or doubled:
        report.wrong.append(f"{one.session}: its reader missed {missing[:5]} and saw twice {doubled[:5]}")
    elif [event.to_json() for event in one.seen] != [event.to_json() for event in log]:
        report.wrong.append(
            f"{one.session}: its reader saw other events than the log holds, or in another order"
        )


def _check_tools(chaos: Chaos, report: Report) -> None:
    """Check that an at-most-once tool started once per text; a steered turn may have two such texts."""
    paid = Counter((note["turn"], note["text"]) for note in chaos.stage.notes("tool", tool="pay"))
    for (turn, text), times in paid.items():
        if times > 1:
            report.repeated += 1
            report.wrong.append(f"turn {turn} paid {times} times for {text!r}")


def _check_decisions(chaos: Chaos, report: Report) -> None:
    """Check that all deciders saw the same decision about a call, and that only approved calls paid.

    A steered turn may have several calls. The stage of an older release does not record which call paid.
    """
    calls = {(note["turn"], note.get("call")) for note in chaos.stage.notes("tool", tool="pay")}
    paid = {turn for turn, _ in calls}
    asked = {turn.turn_id for one in chaos.conversations for turn in one.turns if turn.text.endswith(ASKS)}
    report.decided = len(chaos.people.made)
    for (turn, call), made in chaos.people.made.items():
        if len(made) != 1:
            report.wrong.append(f"turn {turn}: the call {call} was decided in several ways: {sorted(made)}")
        elif calls & {(turn, call), (turn, None)} and {kind for _, kind in made} != {"approve"}:
            report.wrong.append(f"turn {turn} has paid, and the call {call} was rejected")
    report.answered = len(chaos.people.answered)
    for (turn, message), found in chaos.people.answered.items():
        if len(found) != 1:
            report.wrong.append(
                f"turn {turn}: {message} has answered several things: {sorted(map(sorted, found))}"
            )
    approved = {turn for turn, _ in chaos.people.made}
    if unasked := (paid & asked) - approved:
        report.wrong.append(f"turns have paid that nobody approved: {sorted(unasked)}")


def _check_webhook(chaos: Chaos, logs: dict[str, list[Event]], report: Report) -> None:
    """Check that the endpoint received every end. A delivery it acknowledged may come again only if the deliverer died
    or was cut off before it processed the answer, and then only a few at a time."""
    if chaos.receiver is None:
        return
    told = Counter(chaos.receiver.ids)
    ends = {f"{event.turn_id}-{event.seq}" for log in logs.values() for event in log if event.terminal}
    report.delivered = len(told)
    report.delivered_twice = sum(told.values()) - len(told)
    if missed := ends - told.keys():
        report.wrong.append(f"the webhook was not told of {len(missed)} ends: {sorted(missed)[:5]}")
    deaths = len(chaos.deaths) + sum(
        "redis" in hit.fault.kind or "worker" in hit.fault.kind for hit in chaos.hits
    )
    if report.delivered_twice > AT_ONCE * deaths:
        report.wrong.append(f"the webhook was told {report.delivered_twice} times what it had acknowledged")


def _check_archive(chaos: Chaos, report: Report) -> None:
    """Check that the archive still has what it had of each session."""
    if chaos.sleepers:
        report.archived, report.restored = chaos.sleepers.saved, chaos.sleepers.restored
        report.wrong += chaos.sleepers.trouble


async def _check_memory(chaos: Chaos, client: AsyncClient, report: Report) -> None:
    """Check that the index and the facts have each finished turn once, and nothing that was deleted."""
    if chaos.rememberers:
        if not await chaos.rememberers.all_indexed(client):
            report.wrong.append("sessions still wait to be indexed")
        await chaos.rememberers.check(client)
        report.indexed, report.facts = chaos.rememberers.indexed, chaos.rememberers.facts
        report.documents_left = chaos.rememberers.left
        report.sessions_deleted = chaos.rememberers.deleted
        report.wrong += chaos.rememberers.trouble


def _check_places(chaos: Chaos, report: Report) -> None:
    """Check that no ended turn still takes a place for turns that run alone."""
    report.leaked_places = chaos.places - chaos.free_places
    if report.leaked_places:
        report.wrong.append(
            f"only {chaos.free_places} of {chaos.places} places for turns that run alone are free"
        )


def _check_keys(chaos: Chaos, report: Report) -> None:
    leaked = chaos.network.strays()
    for server in chaos.network.servers:
        leaked += leaked_keys(server.url, chaos.network.stays)
        with Redis.from_url(server.url, decode_responses=True) as redis:
            for registry in redis.scan_iter("rq:*wip:*", count=1000):
                leaked += [f"{registry} {entry}" for entry in redis.zrange(registry, 0, -1)]
            for queue in redis.scan_iter("rq:*queue:*", count=1000):
                leaked += [f"{queue} {entry}" for entry in redis.lrange(queue, 0, -1)]
            leaked += [key for key in redis.scan_iter("rq:*job:*", count=1000) if redis.ttl(key) == -1]
    report.leaked_keys = len(leaked)
    if leaked:
        report.wrong.append(f"left behind: {', '.join(leaked[:10])}")
