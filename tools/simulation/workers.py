"""Workers of a schedule: what each of them knows, and its next call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from antiphon.model import OpenCall, Wait
from antiphon.wire.budgets import Answer, Busy, Outdated, Reached
from antiphon.wire.cell import STEER, SUPERSEDED
from antiphon.wire.promotions import read_promotions
from antiphon.wire.records import ClaimedTurn, Claims
from antiphon.wire.revisions import pins_of, ran_on
from simulation.families import BEGUN, RESULT
from simulation.money import AGENT, Hold
from simulation.world import QUEUES, Calls, World

EVENTS = ["paid", "sent"]  # the names of events that turns wait for
LOST = 0.12  # how often an answer is lost
DIES = 0.04
ROUTED, STEERED = b"routed ", b'{"type":"steered"'
REVISES = "r"  # the prefix of the ids of turns that replace part of the history
MOVES = 0.1  # how often a turn whose revision is elsewhere has reached its time limit
LATE = 0.03  # how often a call arrives again that the network delayed


@dataclass
class Task:
    """A turn as known to its worker, which may have missed answers."""

    turn: ClaimedTurn
    batch: int = 0
    journal: list[bytes] = field(default_factory=list)
    unanswered: Callable[[], None] | None = None  # must be repeated before anything newer
    steered: bool = False  # others may wait to steer it
    here: bool = False  # its revision is that of its worker
    calls: int = 0  # the number of its model calls
    hold: Hold | None = None  # of the model call in progress
    switched: bool = False  # to a fallback
    noted: str = ""  # the scope of the budget it will wait for


class Worker:
    """One worker after another under the same name; a dead worker does not release its leases."""

    def __init__(self, world: World, name: str, dead: list[str], app: str) -> None:
        self._world = world
        self._slot = name
        self.app = app
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
            return self._die()
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
        if task.hold and random.random() < 0.6:
            return self._settle(task, random)
        self._world.families.look(task.turn)
        if not task.here and not task.turn.stop:
            return self._place(task, random)
        if task.here and not task.turn.stop and self._world.families.open(task.journal):
            return self.bring_up(task, random)
        steps = 3 if task.here else 0  # a worker with any revision ends a stopped turn, without a step
        act = random.choices([self._emit, self._step, self._finish, self._give_back], [4, steps, 4, 2])[0]
        return act(task, random)

    def repeat(self, random: Random) -> Any:
        """Repeat one of the last calls."""
        return random.choice(self._sent[-5:])() if self._sent else None

    def _die(self) -> None:
        self._world.note(f"{self.name} dies")
        self._dead.append(self.name)
        self._start()

    def _may_be_steered(self, task: Task) -> bool:
        """Return whether it knows that others wait to steer it, or will learn it with its next write."""
        session = self._world.model.turns[task.turn.turn_id].session
        return task.steered or session.record.text("steer") == task.turn.turn_id

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
        """Drop a superseded task half of the time, as it should be. Otherwise, writes with the old fence continue."""
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
        """Emit one window of every session without an unanswered call."""
        ready = [task for task in self._tasks if not task.unanswered]
        windows = [(task.turn, task.batch + 1, self._marks(random)) for task in ready]
        self._sent.append(lambda: self._world.emit(windows))
        for task, answer in zip(ready, self._world.emit(windows), strict=True):
            task.batch += 1
            if answer == SUPERSEDED:
                self._superseded(task, random)

    def _place(self, task: Task, random: Random) -> None:
        """Run the turn if it belongs on this revision; else requeue it, or move it as at its time limit."""
        turn, pins, ran = task.turn, pins_of(task.turn), ran_on(task.turn)
        promotion = read_promotions(turn.promotions).agents.get(AGENT)
        chosen = pins.get(AGENT) if promotion is None else promotion.choice(
            AGENT, turn.session_id, tenant=turn.tenant, ran=ran.get(AGENT, ""), pinned=pins.get(AGENT, "")
        )  # fmt: skip
        wanted = turn.revision or turn.app or chosen or self.app
        pinned = len(turn.session_id) % 2 == 0 or bool(pins)
        kept = {AGENT: self.app} if pinned else None
        noted = {} if promotion is None else {AGENT: self.app}
        more = (pinned and pins != kept) or noted != ran
        moves = wanted != self.app and random.random() < MOVES
        if moves or (wanted == self.app and (more or not (turn.app or turn.revision))):

            def answered() -> None:
                turn.revision, task.here = self.app, True

            call = partial(
                self._world.begin, turn, self.app, kept, None if noted == ran else noted, moves=moves
            )
            self._send(task, random, call, answered)
        elif wanted == self.app:
            task.here = True
        else:
            lacking, missing = random.choice([(self.app, ""), ("", f"agent@{wanted}")])
            delay = 500 if missing else 0
            call = partial(self._world.give_back, turn, "drain", delay, lacking, (), missing)
            self._send(task, random, call, lambda: self._leave(task))

    def route(self, random: Random) -> None:
        """Let a router choose for a turn that has not begun. Some of these turns move to another queue."""
        if not (new := [task for task in self._tasks if self._has_not_begun(task)]):
            return
        task, queue = random.choice(new), random.choice(["", *QUEUES])
        entry, mark = ROUTED + task.turn.turn_id.encode(), next(self._world.marks)

        def answered() -> None:
            task.journal.append(entry)
            if queue not in ("", task.turn.queue):
                move = partial(self._world.give_back, task.turn, "drain", 0, code="routed")
                self._send(task, random, move, lambda: self._leave(task))

        self._send(task, random, partial(self._world.route, task.turn, queue, entry, mark), answered)

    def _has_not_begun(self, task: Task) -> bool:
        """Return whether its journal has at most the texts it was steered with. Children are not routed."""
        new = not task.unanswered and not task.here and not task.turn.stop
        steered = all(entry.startswith(STEERED) for entry in task.journal)
        return new and steered and not self._world.families.is_child(task.turn.turn_id)

    def _step(self, task: Task, random: Random) -> None:
        mark = next(self._world.marks)
        entries = [f"{task.turn.turn_id}/{mark}/{n}".encode() for n in range(random.randint(1, 2))]
        self._append(task, entries, random, mark)

    def _append(self, task: Task, entries: list[bytes], random: Random, mark: int = 0) -> None:
        self._world.runs(task.turn, self.app)
        length, mark = len(task.journal), mark or next(self._world.marks)

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
        self._world.families.stop(task.journal)
        if not task.turn.stop:
            self._world.runs(task.turn, self.app)
        status = "cancelled" if task.turn.stop else random.choices(["finished", "failed"], [3, 1])[0]
        keep = self._world.keep_of(task.turn) if status == "cancelled" else "steps"
        kept = [] if status == "failed" or keep == "nothing" else [*task.journal]
        if status == "finished" or keep == "partial":
            kept.append(f"{task.turn.turn_id}/{task.turn.run}".encode())
        revises = kept and task.turn.turn_id.startswith(REVISES)
        stay = len(task.turn.history) // 2 if revises else None
        calls: Calls = "told" if status == "finished" else "untold" if task.journal and not kept else ""
        finish = partial(self._world.finish, task.turn, status, kept, stay, calls)
        self._send(task, random, finish, lambda: self._ended(task, random))

    def _ended(self, task: Task, random: Random) -> None:
        self._leave(task)
        if self._world.families.is_child(task.turn.turn_id) and random.random() > LOST:
            self._world.families.tell(task.turn)

    def bring_up(self, task: Task, random: Random) -> None:
        """Let a turn begin a child, wait for it, or take its result."""
        families = self._world.families
        child = families.open(task.journal)
        if child and not families.has_ended(child):
            self._suspend(task, [families.wait(child)], random, aside=random.random() < 0.3)
        elif child:
            self._append(task, [RESULT + child.encode()], random)
        elif families.may_begin(task.turn) and (child := families.begin(task.turn, task.journal)):
            self._append(task, [BEGUN + child.encode()], random) if random.random() > DIES else self._die()

    def _give_back(self, task: Task, random: Random) -> None:
        cause = random.choice(["drain", "error", "limit"])
        delay_ms = 0 if cause == "drain" else random.choice([0, 500, 20_000])
        self._send(
            task, random, lambda: self._world.give_back(task.turn, cause, delay_ms), lambda: self._leave(task)
        )

    @property
    def ready(self) -> list[Task]:
        """The tasks it may continue with."""
        return [task for task in self._tasks if not task.unanswered and task.here and not task.turn.stop]

    def pay(self, random: Random) -> None:
        """Let one of its ``ready`` turns call a model under budgets, or end such a call."""
        task = random.choice(self.ready)
        if task.hold:
            how = random.choices(["settle", "go on", "die"], [4, 5, 1])[0]
            if how != "go on":
                self._settle(task, random) if how == "settle" else self._die()
            return
        task.calls += 1
        cost = None if random.random() < 0.05 else random.choice([0, 10, 40, 90])
        parts = random.choice([("all",), ("inner", "outer")])
        call = partial(
            self._world.money.reserve, task.turn, task.calls, cost, random.choice([0, 10, 40, 90]),
            switched=task.switched, parts=parts,
        )  # fmt: skip
        found: list[Answer | Hold] = []

        def ask() -> Any:
            found.append(call())
            return found[-1]

        self._send(task, random, ask, lambda: self._paid(task, found[-1], random))

    def _paid(self, task: Task, answer: Answer | Hold, random: Random) -> None:
        match answer:
            case Hold():
                task.hold = answer
            case Reached(action="fallback"):
                task.switched = True
            case Reached(action="suspend") if task.noted != answer.scope:
                self._note(task, answer.scope, random)
            case Reached(action="suspend"):
                self._wait_for_money(task, "budget_reached", random.choice([1_000, 600_000]), random)
            case Busy():
                if random.random() < 0.3:
                    self._wait_for_money(task, "budget_held", 2_000, random)
            case Outdated():
                self._leave(task)
            case _:
                finish = partial(self._world.finish, task.turn, "failed", [])
                self._send(task, random, finish, lambda: self._leave(task))

    def _note(self, task: Task, scope: str, random: Random) -> None:
        def answered() -> None:
            task.noted = scope

        self._send(task, random, lambda: self._world.money.note(task.turn, scope), answered)

    def _wait_for_money(self, task: Task, code: str, delay_ms: int, random: Random) -> None:
        call = partial(self._world.give_back, task.turn, "limit", delay_ms, code=code)
        self._send(task, random, call, lambda: self._leave(task))

    def _settle(self, task: Task, random: Random) -> None:
        """Settle a call. The service bills at most what is held; some workers were stopped, and estimate it."""
        assert task.hold
        most, estimated = task.hold.bill, random.random() < 0.2
        cost, tokens = random.randint(0, most.cost), random.randint(0, most.tokens)
        call = partial(self._world.money.settle, task.hold, cost, tokens, estimated=estimated)

        def answered() -> None:
            task.hold = None

        self._send(task, random, call, answered)

    def suspend(self, random: Random) -> None:
        """Suspend one of its turns, which waits for decisions, events or time."""
        ready = [task for task in self._tasks if not task.unanswered and task.here]
        if not ready:
            return
        calls: list[OpenCall | Wait]
        task, aside = random.choice(ready), random.random() < 0.5
        calls = [
            OpenCall(
                f"c {n}", "tool", kind=random.choice(["approval", "tool"]),
                seconds=random.choice([5.0, 50.0, 86_400.0]), at_limit=random.choice(["reject", "approve", "fail"]),
            )
            for n in range(random.randint(0, 3))
        ]  # fmt: skip
        if not calls or random.random() < 0.3:
            calls.append(Wait("c", "sleep", seconds=random.choice([1.0, 20.0, 86_400.0])))
        for name in random.sample(EVENTS, random.choice([0, 0, 1, 2])):
            after = random.randint(0, self._world.model.event_position)
            seconds = random.choice([5.0, 50.0, 86_400.0])
            calls.append(Wait("c", f"event {name}", "event", seconds, event=name, after=after))
        self._suspend(task, calls, random, aside=aside)

    def batch(self, random: Random) -> None:
        """Have the model service answer one of its turns in a batch."""
        ready = [task for task in self._tasks if not task.unanswered and task.here]
        if ready:
            task = random.choice(ready)
            wait = self._world.batches.ask(task.turn, random)

            def wait_for_it() -> None:
                task.unanswered = None
                self._suspend(task, [wait], random, aside=random.random() < 0.3)

            if random.random() < 0.3:  # the answer may arrive before it waits
                task.unanswered = wait_for_it
            else:
                wait_for_it()

    def _suspend(self, task: Task, calls: list[OpenCall | Wait], random: Random, *, aside: bool) -> None:
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
        """Requeue a turn that needs a capability its App lacks, for the workers of another App."""
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
