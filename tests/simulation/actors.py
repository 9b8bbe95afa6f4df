"""Who acts in a schedule. Each act is one script call, chosen by the number that the schedule gives to the step.

So a schedule without some of its steps is a schedule too, and a failing one can be made short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from antiphon.wire.cell import SUPERSEDED, ClaimedTurn, Claims
from simulation.model import ENDED
from simulation.world import QUEUES, World

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
WEIGHTS = FIRST_WEIGHTS | {"clock": 2, "life": 3, "damage": 4}
LOST = 0.12  # how often an answer is lost
DIES = 0.04
HOUR_MS = 3_600_000
LATE = 0.03  # how often a call that a network has kept comes again


@dataclass
class Task:
    """A turn as its worker knows it; what the worker was not told it does not know."""

    turn: ClaimedTurn
    batch: int = 0
    journal: list[bytes] = field(default_factory=list)
    unanswered: Callable[[], None] | None = None  # must be repeated before anything newer


class Worker:
    """One worker after another under the same name; a dead one leaves its leases behind."""

    def __init__(self, world: World, name: str, dead: list[str]) -> None:
        self._world = world
        self._slot = name
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
        act = random.choices([self._emit, self._step, self._finish, self._give_back], [4, 3, 4, 2])[0]
        return act(task, random)

    def _number(self) -> int:
        self._calls += 1
        return self._calls

    def _claim(self, random: Random, only: str = "") -> None:
        name, token, limit = self.name, f"{self.name}-{self._number()}", random.choice([1, 2, 8])
        self._sent.append(lambda: self._world.claim(name, token, limit, only))

        def answered(claims: Claims) -> None:
            self._unanswered = None
            known = {task.turn.fence for task in self._tasks}
            self._tasks += [
                Task(turn, journal=[*turn.journal]) for turn in claims.turns if turn.fence not in known
            ]
            if claims.alone:
                self._unanswered = lambda: self._claim(random, only=claims.alone[0])

        def call() -> None:
            answered(self._world.claim(name, token, limit, only))

        if random.random() < LOST:
            self._world.note(f"{self.name} does not hear the next answer")
            self._world.claim(name, token, limit, only)
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
            else:
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

    def _finish(self, task: Task, random: Random) -> None:
        status = "cancelled" if task.turn.stop else random.choices(["finished", "failed"], [3, 1])[0]
        kept = [] if status == "failed" else [*task.journal]
        if status == "finished":
            kept.append(f"{task.turn.turn_id}/{task.turn.run}".encode())
        self._send(
            task, random, lambda: self._world.finish(task.turn, status, kept), lambda: self._leave(task)
        )

    def _give_back(self, task: Task, random: Random) -> None:
        cause = random.choice(["drain", "error"])
        delay_ms = random.choice([0, 500, 20_000]) if cause == "error" else 0
        self._send(
            task, random, lambda: self._world.give_back(task.turn, cause, delay_ms), lambda: self._leave(task)
        )

    def _leave(self, task: Task) -> None:
        if task in self._tasks:
            self._tasks.remove(task)


class Actors:
    """All actors of one schedule. A step is a name and a number."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dead: list[str] = []
        self._submitted = 0
        self._acts: dict[str, Callable[[Random], None]] = {
            **{name: Worker(world, name, self._dead).act for name in ("w1", "w2", "w3")},
            "client": self._client,
            "time": self._time,
            "reaper": self._reaper,
            "supervisor": self._supervisor,
            "rq": self._rq,
            "forget": lambda _: world.forget_scripts(),
            "clock": self._clock,
            "life": self._life,
            "damage": self._damage,
        }

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
                reject=random.random() < 0.1,
            )  # fmt: skip
        elif what == "again":
            turn = self._world.model.turns[random.choice(known)]
            session = turn.session.id if random.random() < 0.7 else random.choice(SESSIONS)
            self._world.submit(session, turn.id, turn.queue)
        elif what == "cancel":
            open_turns = [name for name in known if self._world.model.turns[name].status not in ENDED]
            self._world.cancel(random.choice(open_turns or known), "enough")
        else:
            self._world.snapshot(random.choice(list(self._world.model.sessions)))

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
        turns = [*heads, *(turn for turn in model.turns.values() if turn.status == "delayed")]
        if turns:
            field = random.choice(["crashes", "attempt", "errors", "tail"])
            self._world.damage(random.choice(turns).id, field, random.choice(["abc", "", "1.5", "1e999"]))

    def _reaper(self, random: Random) -> None:
        self._world.reap(limit=random.choice([1, 100, 100]))

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
        self._world.rq_act(what, turn, random.choice(QUEUES))
