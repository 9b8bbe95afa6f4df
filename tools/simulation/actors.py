"""The actors of a schedule. Each act is one script call, chosen by the number of its step in the schedule.

So a schedule without some of its steps is still a schedule, and a failing one can be shrunk.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, get_args

from antiphon.errors import UsageError
from antiphon.input.values import Priority
from antiphon.model import Budget
from antiphon.model.budget import Per
from antiphon.model.revisions import Promotion, paused, promoted, rolled_back
from antiphon.wire.budgets import user_of
from antiphon.wire.lists.webhooks import What
from antiphon.wire.promotions import read_promotions
from simulation.beside import Due
from simulation.hooks import Round
from simulation.model import ENDED, is_deleted, queue_of
from simulation.money import AGENT, NANO
from simulation.stock import StockWorker
from simulation.workers import DIES, EVENTS, LOST, REVISES, Worker
from simulation.world import QUEUES, World

READ = "r1"
SESSIONS = ["s1", "s2", 'it\'s "3"\\']
FIRST_WEIGHTS = {  # tests name schedules made with these by their seed
    "client": 22,
    "w1": 18,
    "w2": 18,
    "w3": 8,
    "time": 12,
    "reaper": 11,
    "supervisor": 4,
    "rq": 6,
    "forget": 1,
}
WEIGHTS = FIRST_WEIGHTS | {
    "clock": 2,
    "life": 3,
    "damage": 4,
    "editor": 14,
    "spare": 2,
    "people": 22,
    "tenants": 20,
    "talker": 10,
    "schedulers": 8,
    "gate": 5,
    "apps": 4,
    "stock": 12,
    "receivers": 14,
    "readers": 14,
    "operators": 4,
    "uploads": 8,
    "payers": 14,
    "budgets": 5,
    "families": 10,
    "batches": 8,
    "routers": 6,
    "replays": 4,
    "messages": 4,
    "pushes": 8,
}
BESIDE = {"client": 4, "w1": 4, "time": 8, "clock": 1, "reaper": 2, "schedulers": 20, "gate": 8}
TOLD = {"client": 6, "w1": 10, "w2": 6, "people": 2, "time": 8, "clock": 1, "reaper": 2, "receivers": 30}
RESUMED = {"client": 10, "w1": 40, "w2": 10, "readers": 4, "returners": 14, "editor": 6, "time": 4}
READERS = {"client": 20, "life": 12, "readers": 40, "time": 6, "reaper": 4}
LIVES = {"client": 12, "w1": 16, "life": 16, "time": 6, "clock": 4, "reaper": 10}
SET_BACK = {"client": 8, "w1": 16, "time": 2, "clock": 10, "receivers": 16, "people": 3}
PEOPLE = {"client": 8, "w1": 18, "w2": 12, "people": 40, "time": 4}
STALLED = {"client": 8, "w1": 18, "w2": 12, "people": 10, "time": 12, "reaper": 10}
STOCK = {"client": 4, "stock": 30, "rq": 10, "w1": 4}
UPLOADS = {"client": 10, "w1": 10, "uploads": 20, "life": 6, "editor": 6, "time": 4}
PAYING = {
    "tenants": 12,
    "w1": 26,
    "payers": 26,
    "budgets": 6,
    "time": 6,
    "supervisor": 8,
    "reaper": 4,
    "life": 2,
}
FAMILIES = {"client": 4, "w1": 40, "families": 16, "time": 3, "supervisor": 2, "reaper": 3}
STEPS = {"client": 4, "w1": 40, "w2": 4, "time": 1, "late": 8}
RETRIED = {"client": 6, "w1": 20, "rq": 20, "time": 8, "routers": 6}
EDITED = {"client": 6, "w1": 14, "editor": 30, "time": 3}
STEERED = {"client": 4, "w1": 20, "w2": 6, "talker": 20, "time": 6, "reaper": 6}
BATCHED = {"client": 6, "w1": 16, "w2": 8, "people": 16, "batches": 40, "time": 6, "reaper": 3}
ROUTED = {
    "client": 10,
    "tenants": 6,
    "w1": 24,
    "w2": 10,
    "routers": 14,
    "time": 4,
    "supervisor": 3,
    "reaper": 3,
}
REPLAYED = {"client": 10, "w1": 24, "replays": 20, "life": 2}
ANSWERED = PEOPLE | {"people": 30, "messages": 20, "life": 2}
PUSHED = PEOPLE | {"pushes": 40, "life": 2, "clock": 2, "reaper": 3, "rq": 2}
PROMOTED = {"client": 10, "w1": 14, "w2": 14, "operators": 8, "time": 4}
FEWER = {
    "schedules/": BESIDE, "limits/": BESIDE, "include/scheduled": BESIDE, "webhooks/": TOLD, "include/webhooks": TOLD,
    "notices/": TOLD, "include/notices": TOLD, "include/following": TOLD, "include/requeue": STOCK,
    "files/": UPLOADS, "include/files": UPLOADS, "include/ends": RESUMED,
    "editing/edit": EDITED, "editing/fork": EDITED, "include/cut": EDITED, "steer": STEERED,
    "append_step STEER": STEERED, "append_step": STEPS,
    "include/retry": RETRIED, "rate": PROMOTED | {"life": 4},
    "promote": PROMOTED, "editing/erase": LIVES, "include/clock_back": SET_BACK,
    "route": ROUTED, "keep_variant": REPLAYED, "keep_answered": ANSWERED, "pushes/": PUSHED, "include/pushes": PUSHED,
    "batches/": BATCHED, "include/batches": BATCHED, "budgets/": PAYING, "include/ledgers": PAYING,
    "decide": PEOPLE, "suspend": STALLED, "include/watch": STALLED, "events/": PEOPLE, "include/events": PEOPLE,
}  # fmt: skip
WORLDS = [WEIGHTS, READERS, RESUMED, FAMILIES, *{id(weights): weights for weights in FEWER.values()}.values()]
APPS = {"w1": "app-a", "w2": "app-b", "w3": "app-c"}
"""Each is a different revision of the agent. RQ's own worker runs the App of the first."""
SCHEDULES = {"k:s1": "", "l:s2": "", "m:a1": "a"}  # with the tenant of each
EVERY_END = ",turn_finished,turn_failed,turn_cancelled,turn_suspended,"
WEBHOOKS = {"all": (EVERY_END, ""), "failed": (",turn_failed,", ""), "of a": (EVERY_END, "a")}
OF_TENANTS = {
    "a": ["a1", "a2", "a3", "a4"],
    "b": ["b1", "b2", "b3", "b4"],
    "c": ["c1", "c2"],
    "": ["p1", "p2", "p3"],
}
PRIORITIES: list[Priority] = ["high", "normal", "normal", "low"]
USERS = ["", "ann", "ann", "bob"]
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
PAID_FOR = {
    "tenant": ["a", "b", ""], "user": [user_of("a", "ann"), user_of("b", "bob"), ""], "session": ["s1", "a1", ""],
    "agent": [AGENT],
}  # fmt: skip
FORKS = ["f1", "f2"]


def _budget(random: Random) -> Budget:
    number, per = random.choice([60, 100, 150]), random.choice(get_args(Per))
    limit = {"cost": number * NANO} if random.random() < 0.5 else {"tokens": number}
    return Budget(**limit, per=per, reached=random.choice(["reject", "suspend", "suspend", "fallback"]))


def fewer_for(file: str) -> dict[str, int] | None:
    """Return the weights of only the actors that use a script, if most actors do not use it."""
    return next((weights for start, weights in FEWER.items() if file.startswith(start)), None)


class Actors:
    """All actors of one schedule. A step is a name and a number."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dead: list[str] = []
        self._submitted = 0
        self._workers = [Worker(world, name, self._dead, app) for name, app in APPS.items()]
        self._stock = StockWorker(world, "stock", self._dead, APPS["w1"])
        self._rounds: list[Round | None] = [None, None]  # the rounds of two deliverers
        self._wishes = 0
        self._promotions: list[bytes] = []  # as read by operators
        self._acts: dict[str, Callable[[Random], None]] = {
            **{f"w{n}": worker.act for n, worker in enumerate(self._workers, 1)},
            "client": self._client,
            "time": self._time,
            "reaper": self._reaper,
            "spare": self._spare,
            "supervisor": self._supervisor,
            "rq": self._rq,
            "forget": lambda _: world.forget_scripts(),
            "clock": self._clock,
            "life": self._life,
            "damage": self._damage,
            "editor": self._editor,
            "tenants": self._tenants,
            "talker": self._talker,
            "people": self._people,
            "readers": self._readers,
            "returners": self._returners,
            "schedulers": self._schedule,
            "gate": self._gate,
            "apps": lambda random: random.choice(self._workers).lacks(random, self._workers),
            "stock": self._stock.act,
            "receivers": self._receivers,
            "operators": self._operators,
            "uploads": self._uploads,
            "payers": self._payers,
            "budgets": self._budgets,
            "families": self._families,
            "batches": self._batches,
            "late": lambda random: random.choice(self._workers).repeat(random),
            "routers": lambda random: random.choice(self._workers).route(random),
            "replays": world.variants.act,
            "messages": world.answers.act,
            "pushes": world.pushes.act,
        }
        self._schedulers: list[list[Due]] = [[], []]  # due schedules that each has found and not yet advanced

    def step(self, actor: str, number: int) -> None:
        self._acts[actor](Random(number))

    def _client(self, random: Random) -> None:
        known = list(self._world.model.turns)
        what = random.choices(["submit", "batch", "again", "cancel", "snapshot"], [6, 1, 1, 2, 1])[0]
        if what == "submit" or not known:
            self._submitted += 1
            due_in_ms = random.choice([0, 0, 0, 0, 0, 1_000, 40_000])
            self._world.submit(
                random.choice(SESSIONS), f"t{self._submitted}", random.choice(QUEUES), due_in_ms,
                busy="reject" if random.random() < 0.1 else "enqueue",
            )  # fmt: skip
        elif what == "batch":
            self._submitted += 2
            names = [f"t{self._submitted - 1}", f"t{self._submitted}", random.choice(known)]
            self._world.submit_many([(random.choice(SESSIONS), name, QUEUES[0]) for name in names])
        elif what == "again":
            turn = self._world.model.turns[random.choice(known)]
            session = turn.session.id if random.random() < 0.7 else random.choice(SESSIONS)
            self._world.submit(session, turn.id, queue_of(turn), again=self._again(random))
        elif what == "cancel":
            open_turns = [name for name in known if self._world.model.turns[name].status not in ENDED]
            turn = random.choice(open_turns or known)
            self._world.cancel(turn, "enough", random.choice(["partial", "steps", "nothing"]))
        else:
            self._world.snapshot(random.choice([*self._world.model.sessions] or SESSIONS))

    def _operators(self, random: Random) -> None:
        """Promote revisions, pause, roll back, and rate turns; some operators have read outdated promotions."""
        turns = self._world.model.turns
        if turns and random.random() < 0.3:
            self._world.rate(random.choice([*turns]), random.choice([-1, 0.5, 1]))
            return
        earlier = self._promotions[-1] if self._promotions and random.random() < 0.2 else None
        before = self._world.model.promotions if earlier is None else earlier
        known = read_promotions(before).agents.get(AGENT, Promotion())
        revision, whose = (
            random.choice([*APPS.values()]),
            random.choice(["all", "share", "tenant", "session"]),
        )
        asked: dict[str, dict[str, Any]] = {
            "all": {}, "share": {"share": random.choice([0.2, 0.5, 0.8])},
            "tenant": {"tenant": random.choice([*filter(None, OF_TENANTS)])},
            "session": {"session": random.choice(SESSIONS)},
        }  # fmt: skip
        try:
            after = {
                "promote": lambda: promoted(known, revision, **asked[whose]), "reset": lambda: None,
                "pause": lambda: paused(known, AGENT), "roll back": lambda: rolled_back(known, AGENT),
            }[random.choices(["promote", "reset", "pause", "roll back"], [4, 1, 1, 2])[0]]()  # fmt: skip
        except UsageError:
            return
        self._promotions.append(self._world.model.promotions)
        for _ in range(2 if random.random() < LOST else 1):
            self._world.promote(before, {} if after is None else {AGENT: after})

    def _editor(self, random: Random) -> None:
        """Cut histories, copy them, or submit turns that replace their second half, as a client does."""
        sessions = self._world.model.sessions
        self._submitted += 1
        op, what = f"{self._submitted:016x}", random.choice(["revise", "revise", "rewind", "fork"])
        told = [name for name in SESSIONS if name in sessions and sessions[name].history]
        name = random.choice(told or SESSIONS)
        known = sessions.get(name)
        if what == "revise" or known is None:
            read = random.choice([None, None, None, self._world.model.seq_of(name), 1])
            self._world.submit(name, f"{REVISES}{self._submitted}", random.choice(QUEUES), cursor=read)
            return
        keep, changed = random.randint(0, len(known.history)), random.random() < 0.2
        if what == "rewind" and known.history:
            self._world.rewind(name, op, random.choice(["idle", "between"]), keep, changed=changed)
        elif what == "fork":
            self._world.fork(name, random.choice(FORKS), op, keep, changed=changed)

    def _uploads(self, random: Random) -> None:
        """Add files of three chunks, one after another; some clients die, and some repeat a chunk."""
        session, file = random.choice([*SESSIONS, FORKS[0]]), random.choice("abc")
        what = random.choices(["add", "look", "drop"], [8, 2, 1])[0]
        if what == "look":
            self._world.look_at_files(session, file, random.randrange(3))
        elif what == "drop":
            self._world.drop_file(session, file)
        else:
            for at in range(random.choice([0, 0, 0, 1, 2]), random.choice([1, 2, 3, 3, 3])):
                for _ in range(2 if random.random() < LOST else 1):
                    self._world.add_chunk(session, file, at, 3)

    def _payers(self, random: Random) -> None:
        """Let turns call models, several at once."""
        for _ in range(random.randint(1, 4)):
            if ready := [worker for worker in self._workers if worker.ready]:
                random.choice(ready).pay(random)

    def _batches(self, random: Random) -> None:
        """Let turns wait for batches, or workers send the batches and deliver the answers."""
        ready = [worker for worker in self._workers if worker.ready]
        if ready and random.random() < 0.4:
            random.choice(ready).batch(random)
        else:
            self._world.batches.act(random)

    def _families(self, random: Random) -> None:
        """Let turns begin children, wait for them and take their results."""
        if ready := [worker for worker in self._workers if worker.ready]:
            worker = random.choice(ready)
            worker.bring_up(random.choice(worker.ready), random)

    def _budgets(self, random: Random) -> None:
        """Set, lower and raise budgets, or end the day; some callers die before they wake the waiting turns."""
        if random.random() < 0.1:
            self._world.wait(DAY_MS - self._world.model.now % DAY_MS - random.choice([0, 1]))
            return
        scope = random.choice([*PAID_FOR, "agent"])
        name, budgets = random.choice(PAID_FOR[scope]), None
        if (wanted := self._world.money.wanted) and random.random() < 0.8:
            scope, name = random.choice(wanted)
        if random.random() < 0.85:
            budgets = [_budget(random) for _ in range(random.choice([0, 1, 1, 1, 2]))]
        self._world.money.set(scope, name, budgets, wakes=random.random() < 0.8)

    def _tenants(self, random: Random) -> None:
        """Submit turns of tenants, and turns without a tenant, with priorities."""
        tenant = random.choices([*OF_TENANTS], [5, 6, 2, 3])[0]
        self._submitted += 1
        self._world.submit(
            random.choice(OF_TENANTS[tenant]), f"x{self._submitted}", random.choice([QUEUES[0], *QUEUES]),
            random.choice([0, 0, 0, 0, 0, 0, 1_000]), tenant=tenant, priority=random.choice(PRIORITIES),
            user=random.choice(USERS) if tenant else "",
        )  # fmt: skip

    def _talker(self, random: Random) -> None:
        """Interrupt, roll back or steer running turns, as a client does that does not wait."""
        busy = random.choice(["interrupt", "rollback", "steer", "steer"])
        turns = self._world.model.turns
        failed = [turn for turn in turns.values() if turn.status == "failed"]
        if failed and random.random() < 0.2:
            turn = random.choice(failed)
            self._world.submit(turn.session.id, turn.id, queue_of(turn), busy=busy, again=self._again(random))
            return
        self._submitted += 1
        run = [
            name
            for name, one in self._world.model.sessions.items()
            if one.record.get("fence") and name in SESSIONS
        ]
        session = random.choice(run or SESSIONS)
        self._world.submit(session, f"t{self._submitted}", random.choice(QUEUES), busy=busy)

    def _people(self, random: Random) -> None:
        """Suspend turns for people or the caller, who decide late, twice, all at once or never; or send events."""
        model = self._world.model
        if random.random() < 0.45:
            random.choice(self._workers).suspend(random)
            return
        if random.random() < 0.4:
            event = f"{random.randint(1, 12):032x}"
            self._world.send(random.choice(EVENTS), event, random.choice([*OF_TENANTS, "", ""]))
            return
        if random.random() < 0.15:
            self._child(random)
            return
        waited = [turn for turn in model.turns.values() if turn.calls]
        waiting = [turn for turn in waited if turn.status == "suspended"]
        if not waited:
            return
        turn = random.choice(waiting if waiting and random.random() < 0.8 else waited)
        call = random.choice([*(call.id for call in turn.calls), "c 0"])
        self._world.decide(
            turn.id, call, f"op{random.randint(1, 3)}", random.choice(["approve", "reject", "result"])
        )

    def _child(self, random: Random) -> None:
        """Forward events of a child, from the right place or from an outdated one."""
        turns = list(self._world.model.turns.values())
        if not turns:
            return
        turn, child = random.choice(turns), f"c{random.randint(1, 2)}"
        place = turn.record.text(f"child:{child}") or "0"
        after = int(place) if place != "over" and random.random() < 0.7 else random.randint(0, 3)
        run = turn.record.number("run") - (random.random() < 0.1)
        over = random.random() < 0.2
        self._world.forward(turn.id, run, child, after, after + random.randint(0, 2) + over, over=over)

    def _schedule(self, random: Random) -> None:
        """Set schedules, or let one of two schedulers submit what is due. Each scheduler may die at any moment."""
        beside, what = self._world.beside, random.choices(["set", "change", "die", "go on"], [2, 1, 1, 8])[0]
        found = random.choice(self._schedulers)
        if what == "set" or not beside.schedules:
            beside.write(random.choice(list(SCHEDULES)), random.choice([1_000, 6_000, 60_000]))
        elif what == "change":
            beside.change(random.choice(list(SCHEDULES)), random.choice(["pause", "resume", "delete"]))
        elif what == "die" or not found:
            found[:] = beside.due()
        elif found[0].submitted:
            beside.advance(found.pop(0))
        else:
            self._submit_due(found[0])

    def _submit_due(self, due: Due) -> None:
        name, _, session = due.name.partition(":")
        turn = f"{name}-{due.due}"
        answer = self._world.submit(session, turn, QUEUES[0], tenant=SCHEDULES[due.name])
        due.submitted = True
        due.turn, due.error = (turn, "") if isinstance(answer, int) else ("", answer)

    def _receivers(self, random: Random) -> None:
        """Set webhooks, or let one of two deliverers act. Each deliverer may die at any moment, or get no answer."""
        hooks, what = self._world.hooks, random.choices(["set", "remove", "deliver"], [2, 1, 14])[0]
        if what == "set" or not hooks.hooks:
            name = random.choice(list(WEBHOOKS))
            hooks.write(name, *WEBHOOKS[name])
        elif what == "remove":
            hooks.remove(random.choice(list(WEBHOOKS)))
        else:
            number = random.randrange(2)
            for _ in range(random.randint(1, 3)):
                self._rounds[number] = self._deliver(self._rounds[number], f"d{number}", random)

    def _deliver(self, one: Round | None, who: str, random: Random) -> Round | None:
        """Run one act of a deliverer, and return the round it then holds."""
        hooks = self._world.hooks
        if one is None:
            one = hooks.take(who)
        elif one.heard:
            what: What = random.choices(["delivered", "later", "dropped", "skipped"], [8, 3, 1, 1])[0]
            heard, ms = one.heard, random.choice([1_000, 6_000, 60_000])
            hooks.settle(one, what, ms)
            if random.random() < LOST:
                one.heard = heard
                hooks.settle(one, what, ms)
        elif one.left and self._world.model.now <= one.until:
            hooks.send(one)
        else:
            hooks.release(one)
            return None
        return one if random.random() > DIES else None

    def _gate(self, random: Random) -> None:
        """Let calls of two models start, which their services limit now and then."""
        scope = random.choice(["p/m/1", "p/m/2"])
        if random.random() < 0.3:
            self._world.beside.limit(
                scope, random.choice([0, 500, 5_000, 700_000]), random.choice([0, 0, 20, 700])
            )
            return
        for _ in range(random.randint(1, 4)):
            self._world.beside.admit(scope)

    def _again(self, random: Random) -> str:
        """Return the id of a request to run a turn again; '' for none, and sometimes the id of an earlier request."""
        if random.random() < 0.4:
            return ""
        self._wishes += random.random() < 0.8
        return f"again{self._wishes}"

    def _time(self, random: Random) -> None:
        self._world.wait(random.choice([1, 100, 1_000, 6_000, 12_000, 31_000]))

    def _clock(self, random: Random) -> None:
        self._world.jump(random.choice([-HOUR_MS, -5_000, -500, HOUR_MS]))

    def _life(self, random: Random) -> None:
        """Let an unused session expire, or delete it. Sometimes requeue a turn."""
        model = self._world.model
        if sessions := [*dict.fromkeys([*model.sessions, *model.past])]:
            random.choice([self._world.end_life, self._world.delete])(random.choice(sessions))
        if model.turns and random.random() < 0.1:
            self._world.requeue(random.choice([*model.turns]), "again0")

    def _damage(self, random: Random) -> None:
        damaged, model = list(self._world.damaged), self._world.model
        if damaged and random.random() < 0.4:
            self._world.mend(random.choice(damaged))
            return
        heads = [session.inbox[0] for session in model.sessions.values() if session.inbox]
        turns = [*heads, *(t for t in model.turns.values() if t.due is not None or t.aside is not None)]
        if turns:
            field = random.choice(["crashes", "attempt", "errors", "tail"])
            self._world.damage(random.choice(turns).id, field, random.choice(["abc", "", "1.5", "1e999"]))

    def _reaper(self, random: Random) -> None:
        self._world.reap(limit=random.choice([1, 100, 100]))
        if random.random() < 0.2:
            self._world.outage(random.choice(["ant:active", "ant:clock", "ant:fence", "ant:fence"]))

    def _spare(self, random: Random) -> None:
        self._world.reap(limit=random.choice([1, 100]), spare=True)

    def _supervisor(self, random: Random) -> None:
        self._world.reap(holder=random.choice(self._dead) if self._dead else "nobody")

    def _readers(self, random: Random) -> None:
        """Read sessions, one of which its client uses, deletes and starts again while it is read."""
        for _ in range(random.randint(2, 8)):
            what = random.choices(["open", "read", "talk", "end"], [2, 3, 3, 3])[0]
            known = self._world.model.sessions.get(READ)
            if what == "open":
                self._open_reader(random)
            elif what == "read":
                self._world.readers.read(random.randrange(8), lost=random.random() < 0.2)
            elif what == "talk" and known and known.inbox:
                self._world.cancel(known.inbox[0].id, "enough", "nothing")
            elif what == "talk":
                self._submitted += 1
                self._world.submit(READ, f"t{self._submitted}", QUEUES[0])
                if random.random() < 0.8:
                    self._world.cancel(f"t{self._submitted}", "enough", "nothing")
            elif known:
                random.choice([self._world.end_life, self._world.delete])(READ)

    def _open_reader(self, random: Random) -> None:
        session = READ if random.random() < 0.7 else random.choice([READ, *self._world.model.sessions])
        self._world.readers.open(session, random.choice([None, 0, self._world.model.seq_of(session)]))

    def _returners(self, random: Random) -> None:
        """Read sessions with a history; readers return with any cursor, and may leave after a page."""
        told = [one for one, known in self._world.model.sessions.items() if known.history]
        if told and random.random() < 0.6:
            session = random.choice(told)
            newest = self._world.model.seq_of(session)
            self._world.readers.open(session, random.choice([0, random.randrange(newest + 1)]))
        lost, leaves = random.random() < 0.2, random.random() < 0.4
        self._world.readers.read(random.randrange(8), lost=lost, leaves=leaves)

    def _rq(self, random: Random) -> None:
        model = self._world.model
        kept = [turn.id for turn in model.turns.values() if not is_deleted(turn)]
        if not kept:
            return
        failed = [turn.id for turn in model.turns.values() if turn.status == "failed"]
        whats = ["empty", "cancel", "delete", "requeue", "our requeue", "push", "remove", "take and die"]
        what = random.choice(whats)
        turn = random.choice(failed if "requeue" in what and failed else kept)
        if what == "our requeue":
            self._world.requeue(turn, self._again(random) or "again0")
        else:
            self._world.rq_act(what, turn, random.choice(QUEUES))
