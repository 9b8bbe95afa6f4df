"""Who acts in a schedule. Each act is one script call, chosen by the number that the schedule gives to the step.

So a schedule without some of its steps is a schedule too, and a failing one can be made short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from antiphon.input.values import Priority
from antiphon.model import OpenCall
from antiphon.wire.cell import STEER, SUPERSEDED, ClaimedTurn, Claims
from simulation.beside import Due
from simulation.model import ENDED
from simulation.world import QUEUES, Calls, World

__all__ = ["FIRST_WEIGHTS", "WEIGHTS", "Actors"]

SESSIONS = ["s1", "s2", 'it\'s "3"\\']
FIRST_WEIGHTS = {  # with these were made the schedules that the tests name by their seed
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
}
APPS = {"w1": "app-a", "w2": "app-a", "w3": "app-b"}
SCHEDULES = {"k:s1": "", "l:s2": "", "m:a1": "a"}  # and whose each is
OF_TENANTS = {
    "a": ["a1", "a2", "a3", "a4"],
    "b": ["b1", "b2", "b3", "b4"],
    "c": ["c1", "c2"],
    "": ["p1", "p2", "p3"],
}
PRIORITIES: list[Priority] = ["high", "normal", "normal", "low"]
LOST = 0.12  # how often an answer is lost
DIES = 0.04
HOUR_MS = 3_600_000
FORKS = ["f1", "f2"]
REVISES = "r"  # so begin the ids of turns that take the place of a part of the history
LATE = 0.03  # how often a call that a network has kept comes again


@dataclass
class Task:
    """A turn as its worker knows it; what the worker was not told it does not know."""

    turn: ClaimedTurn
    batch: int = 0
    journal: list[bytes] = field(default_factory=list)
    unanswered: Callable[[], None] | None = None  # must be repeated before anything newer
    steered: bool = False  # others may wait to steer it


class Worker:
    """One worker after another under the same name; a dead one leaves its leases behind."""

    def __init__(self, world: World, name: str, dead: list[str]) -> None:
        self._world = world
        self._slot = name
        self.app = APPS[name]
        self._dead = dead
        self._lives = 0
        self._calls = 0
        self._sent: list[Callable[[], Any]] = []
        self._start()

    def _start(self) -> None:
        self._lives += 1
        self.name = f"{self._slot}.{self._lives}"
        self._tasks: list[Task] = []
        self._unanswered: Callable[[], None] | None = None

    def act(self, random: Random) -> Any:
        if random.random() < DIES:
            self._world.note(f"{self.name} dies")
            self._dead.append(self.name)
            return self._start()
        if self._sent and random.random() < LATE:
            self._world.note("a call of old arrives once more, and nobody hears the answer")
            return random.choice(self._sent[-20:])()
        if self._unanswered:
            return self._unanswered()
        if not self._tasks or random.random() < 0.2:
            return self._claim(random)
        if random.random() < 0.12:
            return self._renew(random)
        if random.random() < 0.12:
            return self._emit_all(random)
        task = random.choice(self._tasks)
        if task.unanswered:
            return task.unanswered()
        if self._may_be_steered(task) and random.random() < 0.4:
            return self._steer(task, random)
        act = random.choices([self._emit, self._step, self._finish, self._give_back], [4, 3, 4, 2])[0]
        return act(task, random)

    def _may_be_steered(self, task: Task) -> bool:
        """Whether it was told, or would be with its next write."""
        session = self._world.model.turns[task.turn.turn_id].session
        return task.steered or session.steer == task.turn.turn_id

    def _number(self) -> int:
        self._calls += 1
        return self._calls

    def _claim(self, random: Random, only: str = "") -> None:
        name, token, limit = self.name, f"{self.name}-{self._number()}", random.choice([1, 2, 8])
        alone = random.choice([0, 1, 8])
        self._sent.append(lambda: self._world.claim(name, token, limit, alone, only, self.app))

        def answered(claims: Claims) -> None:
            self._unanswered = None
            known = {task.turn.fence for task in self._tasks}
            self._tasks += [
                Task(turn, journal=[*turn.journal], steered=turn.steered)
                for turn in claims.turns
                if turn.fence not in known
            ]
            if claims.alone:
                self._unanswered = lambda: self._claim(random, only=claims.alone[0])

        def call() -> None:
            answered(self._world.claim(name, token, limit, alone, only, self.app))

        if random.random() < LOST:
            self._world.note(f"{self.name} does not hear the next answer")
            self._world.claim(name, token, limit, alone, only, self.app)
            self._unanswered = call
        else:
            call()

    def _renew(self, random: Random) -> None:
        answers = self._world.renew(self.name, [task.turn for task in self._tasks])
        if random.random() < LOST:
            return
        lost = [task for task, answer in zip(self._tasks, answers, strict=True) if answer == SUPERSEDED]
        for task in lost:
            self._superseded(task, random)

    def _superseded(self, task: Task, random: Random) -> None:
        """Half of them stop, as they should. The others go on writing with the fence of old."""
        if random.random() < 0.5 and task in self._tasks:
            self._tasks.remove(task)

    def _send(
        self, task: Task, random: Random, call: Callable[[], Any], answered: Callable[[], None]
    ) -> None:
        self._sent.append(call)

        def whole() -> None:
            answer = call()
            task.unanswered = None
            if answer in (SUPERSEDED, "CONFLICT", False):
                self._superseded(task, random)
            elif answer == "STOPPED":
                task.turn.stop = "it was cancelled before"
            else:
                task.steered = task.steered or answer == STEER
                answered()

        if random.random() < LOST:
            self._world.note(f"{self.name} does not hear the next answer")
            call()
            task.unanswered = whole
        else:
            whole()

    def _marks(self, random: Random) -> list[int]:
        return [next(self._world.marks) for _ in range(random.randint(1, 3))]

    def _emit(self, task: Task, random: Random) -> None:
        batch, marks = task.batch + 1, self._marks(random)

        def answered() -> None:
            task.batch = batch

        self._send(task, random, lambda: self._world.emit([(task.turn, batch, marks)])[0], answered)

    def _emit_all(self, random: Random) -> None:
        """One window of every session that waits for no answer."""
        ready = [task for task in self._tasks if not task.unanswered]
        windows = [(task.turn, task.batch + 1, self._marks(random)) for task in ready]
        self._sent.append(lambda: self._world.emit(windows))
        for task, answer in zip(ready, self._world.emit(windows), strict=True):
            task.batch += 1
            if answer == SUPERSEDED:
                self._superseded(task, random)

    def _step(self, task: Task, random: Random) -> None:
        mark = next(self._world.marks)
        entries = [f"{task.turn.turn_id}/{mark}/{n}".encode() for n in range(random.randint(1, 2))]
        length = len(task.journal)

        def answered() -> None:
            task.journal += entries

        self._send(task, random, lambda: self._world.append_step(task.turn, length, entries, mark), answered)

    def _steer(self, task: Task, random: Random) -> None:
        length = len(task.journal)
        new: list[bytes] = []

        def call() -> str:
            stop, entries = self._world.steer(task.turn, length)
            new[:] = entries
            task.turn.stop = task.turn.stop or (stop if stop not in (SUPERSEDED, "CONFLICT") else "")
            return stop if stop in (SUPERSEDED, "CONFLICT") else ""

        def answered() -> None:
            task.journal += new
            task.steered = False

        self._send(task, random, call, answered)

    def _finish(self, task: Task, random: Random) -> None:
        status = "cancelled" if task.turn.stop else random.choices(["finished", "failed"], [3, 1])[0]
        keep = self._world.keep_of(task.turn) if status == "cancelled" else "steps"
        kept = [] if status == "failed" or keep == "nothing" else [*task.journal]
        if status == "finished" or keep == "partial":
            kept.append(f"{task.turn.turn_id}/{task.turn.run}".encode())
        revises = kept and task.turn.turn_id.startswith(REVISES)
        stay = len(task.turn.history) // 2 if revises else None
        calls: Calls = "told" if status == "finished" else "untold" if task.journal and not kept else ""
        self._send(
            task,
            random,
            lambda: self._world.finish(task.turn, status, kept, stay, calls),
            lambda: self._leave(task),
        )

    def _give_back(self, task: Task, random: Random) -> None:
        cause = random.choice(["drain", "error", "limit"])
        delay_ms = 0 if cause == "drain" else random.choice([0, 500, 20_000])
        self._send(
            task, random, lambda: self._world.give_back(task.turn, cause, delay_ms), lambda: self._leave(task)
        )

    def suspend(self, random: Random) -> None:
        """One of its turns waits for decisions, as the loop has found."""
        ready = [task for task in self._tasks if not task.unanswered]
        if not ready:
            return
        task, aside = random.choice(ready), random.random() < 0.5
        calls = [
            OpenCall(
                f"c {n}", "tool", kind=random.choice(["approval", "tool"]),
                seconds=random.choice([5.0, 50.0, 86_400.0]), at_limit=random.choice(["reject", "approve", "fail"]),
            )
            for n in range(random.randint(1, 3))
        ]  # fmt: skip
        call = partial(self._world.suspend, task.turn, calls, aside=aside)
        self._sent.append(call)

        def whole() -> None:
            answer = call()
            task.unanswered = None
            if answer is None:
                self._superseded(task, random)
            elif answer == "":
                self._leave(task)

        if random.random() < LOST:
            self._world.note(f"{self.name} does not hear the next answer")
            call()
            task.unanswered = whole
        else:
            whole()

    def lacks(self, random: Random, others: list[Worker]) -> None:
        """One of its turns needs what its App lacks: it goes to the workers of another one."""
        ready = [task for task in self._tasks if not task.unanswered]
        if not ready:
            return
        task = random.choice(ready)
        lacking = " ".join(dict.fromkeys([*task.turn.lacking.split(), self.app]))
        workers = [other.name for other in others if other.app not in lacking]
        call = partial(self._world.give_back, task.turn, "drain", 0, lacking, workers)
        self._send(task, random, call, lambda: self._leave(task))

    def _leave(self, task: Task) -> None:
        if task in self._tasks:
            self._tasks.remove(task)


class Actors:
    """All actors of one schedule. A step is a name and a number."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dead: list[str] = []
        self._submitted = 0
        self._workers = [Worker(world, name, self._dead) for name in ("w1", "w2", "w3")]
        self._wishes = 0
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
            "schedulers": self._schedule,
            "gate": self._gate,
            "apps": lambda random: random.choice(self._workers).lacks(random, self._workers),
        }
        self._schedulers: list[list[Due]] = [[], []]  # what each of them has found and not yet moved on

    def step(self, actor: str, number: int) -> None:
        self._acts[actor](Random(number))

    def _client(self, random: Random) -> None:
        known = list(self._world.model.turns)
        what = random.choices(["submit", "again", "cancel", "snapshot"], [6, 1, 2, 1])[0]
        if what == "submit" or not known:
            self._submitted += 1
            due_in_ms = random.choice([0, 0, 0, 0, 0, 1_000, 40_000])
            self._world.submit(
                random.choice(SESSIONS), f"t{self._submitted}", random.choice(QUEUES), due_in_ms,
                busy="reject" if random.random() < 0.1 else "enqueue",
            )  # fmt: skip
        elif what == "again":
            turn = self._world.model.turns[random.choice(known)]
            session = turn.session.id if random.random() < 0.7 else random.choice(SESSIONS)
            self._world.submit(session, turn.id, turn.queue, again=self._again(random))
        elif what == "cancel":
            open_turns = [name for name in known if self._world.model.turns[name].status not in ENDED]
            turn = random.choice(open_turns or known)
            self._world.cancel(turn, "enough", random.choice(["partial", "steps", "nothing"]))
        else:
            self._world.snapshot(random.choice(list(self._world.model.sessions)))

    def _editor(self, random: Random) -> None:
        """A client that cuts histories, copies them, and submits turns that take the place of their second half."""
        sessions = self._world.model.sessions
        self._submitted += 1
        op, what = f"{self._submitted:016x}", random.choice(["revise", "revise", "rewind", "fork"])
        told = [name for name in SESSIONS if name in sessions and sessions[name].history]
        name = random.choice(told or SESSIONS)
        known = sessions.get(name)
        if what == "revise" or known is None:
            self._world.submit(name, f"{REVISES}{self._submitted}", random.choice(QUEUES))
            return
        keep, changed = random.randint(0, len(known.history)), random.random() < 0.2
        if what == "rewind" and known.history:
            self._world.rewind(name, op, random.choice(["idle", "between"]), keep, changed=changed)
        elif what == "fork":
            self._world.fork(name, random.choice(FORKS), op, keep, changed=changed)

    def _tenants(self, random: Random) -> None:
        """Clients of tenants, and one without a tenant that gives its turns priorities."""
        tenant = random.choices([*OF_TENANTS], [5, 6, 2, 3])[0]
        self._submitted += 1
        self._world.submit(
            random.choice(OF_TENANTS[tenant]), f"x{self._submitted}", random.choice([QUEUES[0], *QUEUES]),
            random.choice([0, 0, 0, 0, 0, 0, 1_000]), tenant=tenant, priority=random.choice(PRIORITIES),
        )  # fmt: skip

    def _talker(self, random: Random) -> None:
        """A client that does not wait: it interrupts what runs, rolls it back, or steers it."""
        busy = random.choice(["interrupt", "rollback", "steer", "steer"])
        turns = self._world.model.turns
        failed = [turn for turn in turns.values() if turn.status == "failed"]
        if failed and random.random() < 0.2:
            turn = random.choice(failed)
            self._world.submit(turn.session.id, turn.id, turn.queue, busy=busy, again=self._again(random))
            return
        self._submitted += 1
        run = [name for name, one in self._world.model.sessions.items() if one.fence and name in SESSIONS]
        session = random.choice(run or SESSIONS)
        self._world.submit(session, f"t{self._submitted}", random.choice(QUEUES), busy=busy)

    def _people(self, random: Random) -> None:
        """Turns that wait for people or for the caller, who decide late, twice, all at once or never."""
        model = self._world.model
        if random.random() < 0.45:
            random.choice(self._workers).suspend(random)
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

    def _schedule(self, random: Random) -> None:
        """Users who set schedules, and two schedulers that submit what is due. Each of them may die at any moment."""
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

    def _gate(self, random: Random) -> None:
        """Calls of two models, of which services limit one now and then."""
        scope = random.choice(["p/m/1", "p/m/2"])
        if random.random() < 0.3:
            self._world.beside.limit(
                scope, random.choice([0, 500, 5_000, 700_000]), random.choice([0, 0, 20, 700])
            )
            return
        for _ in range(random.randint(1, 4)):
            self._world.beside.admit(scope)

    def _again(self, random: Random) -> str:
        """A name for the wish to run a turn again; '' for none, and now and then that of a wish that was heard."""
        if random.random() < 0.4:
            return ""
        self._wishes += random.random() < 0.8
        return f"again{self._wishes}"

    def _time(self, random: Random) -> None:
        self._world.wait(random.choice([1, 100, 1_000, 6_000, 12_000, 31_000]))

    def _clock(self, random: Random) -> None:
        self._world.jump(random.choice([-HOUR_MS, -5_000, -500, HOUR_MS]))

    def _life(self, random: Random) -> None:
        """A session that nobody uses comes to its end, or is deleted."""
        sessions = self._world.model.sessions
        if sessions:
            random.choice([self._world.end_life, self._world.delete])(random.choice(list(sessions)))

    def _damage(self, random: Random) -> None:
        damaged, model = list(self._world.damaged), self._world.model
        if damaged and random.random() < 0.4:
            self._world.mend(random.choice(damaged))
            return
        heads = [session.inbox[0] for session in model.sessions.values() if session.inbox]
        turns = [*heads, *(t for t in model.turns.values() if t.status == "delayed" or t.aside is not None)]
        if turns:
            field = random.choice(["crashes", "attempt", "errors", "tail"])
            self._world.damage(random.choice(turns).id, field, random.choice(["abc", "", "1.5", "1e999"]))

    def _reaper(self, random: Random) -> None:
        self._world.reap(limit=random.choice([1, 100, 100]))

    def _spare(self, random: Random) -> None:
        self._world.reap(limit=random.choice([1, 100]), spare=True)

    def _supervisor(self, random: Random) -> None:
        self._world.reap(holder=random.choice(self._dead) if self._dead else "nobody")

    def _rq(self, random: Random) -> None:
        model = self._world.model
        if not model.turns:
            return
        failed = [turn.id for turn in model.turns.values() if turn.status == "failed"]
        whats = ["empty", "cancel", "delete", "requeue", "our requeue", "push", "remove", "take and die"]
        what = random.choice(whats)
        turn = random.choice(failed if "requeue" in what and failed else list(model.turns))
        if what == "our requeue":
            self._world.requeue(turn, self._again(random) or "again0")
        else:
            self._world.rq_act(what, turn, random.choice(QUEUES))
