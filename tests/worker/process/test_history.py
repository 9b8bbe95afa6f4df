"""A session keeps where its window began, so that a turn costs the same however long its session is."""

from support.cells import LEASE_MS

from antiphon.errors import ProviderOverloaded
from antiphon.input.request import AgentSpec
from antiphon.model import Message
from antiphon.testing import script
from antiphon.window import Summary, Window, window_of
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.run_turn import WindowPlace
from antiphon_worker.loop.visible_history import SummaryWriter, VisibleHistory, visible_history
from antiphon_worker.process.history import loaded_history, window_field
from antiphon_worker.providers.scripted import ScriptedProvider

NEW = [Message.user("and now?")]


def said(turn: int) -> list[bytes]:
    question, answer = Message.user(f"question {turn}"), Message.assistant(f"answer {turn}")
    question.turn_id = answer.turn_id = f"t{turn}"
    return [question.to_json(), answer.to_json()]


class NoLease:
    entries = ()

    async def now(self):
        return 0

    async def checkpoint(self) -> None:
        """Nobody asks this turn to stop."""

    async def steered(self, step):
        return []


def writer(*answers) -> SummaryWriter:
    """A model that sums up so; one without an answer fails."""
    lines = script(*answers or [ProviderOverloaded()])
    return SummaryWriter(ScriptedProvider(lines), LoopInput("m"), NoLease(), "s")


async def seen_by(cell, claimed, agent: AgentSpec, new, writer: SummaryWriter) -> VisibleHistory:
    return await visible_history(loaded_history(cell, claimed, agent), window_of(agent.window), new, writer)


def field(shown: VisibleHistory) -> str:
    return window_field(None if shown.start is None else WindowPlace(shown.start, 0))


async def play(cell, agent: AgentSpec, turns: int, start: int = 0):
    """Run turns with an agent; gives how many messages each claim brought, and what the last one was shown."""
    loaded, shown = [], None
    for turn in range(start, start + turns):
        claimed = await cell.started(f"t{turn}")
        loaded.append(len(claimed.history))
        shown = await seen_by(cell, claimed, agent, NEW, writer())
        assert await cell.end(claimed, messages=said(turn), window=field(shown))
    return loaded, shown


async def test_a_claim_brings_the_window_and_not_the_whole_history(cell):
    loaded, shown = await play(cell, AgentSpec("scripted", "m", window=3), 60)
    assert max(loaded[10:]) <= 8
    assert [message.text for message in shown.messages][-2:] == ["question 58", "answer 58"]
    assert len(shown.messages) == 2 * 2 or len(shown.messages) == 3 * 2
    assert await cell.redis.llen(cell.keys.history("s")) == 120


async def test_a_window_of_tokens_begins_where_it_began_until_it_is_full(cell):
    agent, starts = AgentSpec("scripted", "m", window=Window(tokens=200)), []
    for turn in range(40):
        _, shown = await play(cell, agent, 1, start=turn)
        starts.append(shown.start)
    assert starts == sorted(starts)
    assert starts[-1] > 0
    assert len(set(starts)) < len(starts) / 2


async def test_an_agent_that_is_shown_everything_gets_the_front_part_as_well(cell):
    await play(cell, AgentSpec("scripted", "m", window=2), 20)
    _, shown = await play(cell, AgentSpec("scripted", "m"), 1, start=20)
    assert [message.text for message in shown.messages][:2] == ["question 0", "answer 0"]
    assert len(shown.messages) == 40
    assert shown.start is None


SUMMING_UP = AgentSpec("scripted", "m", window=Summary(turns=4))


async def test_a_summary_is_the_same_again_after_a_crash_and_only_the_turn_that_ends_writes_it(cell):
    await play(cell, AgentSpec("scripted", "m", window=Window(tokens=10_000)), 5)
    crashed = await cell.started("t5")
    first = await seen_by(cell, crashed, SUMMING_UP, NEW, writer("It began."))
    await cell.reap_after(LEASE_MS + 1)
    claimed = await cell.take_one("w2")
    assert claimed.summary is None
    second = await seen_by(cell, claimed, SUMMING_UP, NEW, writer("It began."))
    assert (first.messages, first.summary) == (second.messages, second.summary)
    assert not await cell.end(crashed, summary=b"2:of the dead")
    assert await cell.end(
        claimed,
        messages=said(5),
        window=field(second),
        summary=second.summary.to_field(),
    )
    fields = (await cell.snapshot("s")).fields
    assert fields["summary"] == b"6:It began."
    assert fields["window"].startswith(b"6:")
    assert await cell.redis.llen(cell.keys.history("s")) == 12


async def test_turns_that_another_window_left_out_are_in_the_next_summary(cell):
    await play(cell, AgentSpec("scripted", "m", window=2), 20)
    asked = script("All of it.")
    model = SummaryWriter(ScriptedProvider(asked), LoopInput("m"), NoLease(), "s")
    await play(cell, SUMMING_UP, 2, start=20)
    claimed = await cell.started("t22")
    assert len(claimed.history) < 44
    shown = await seen_by(cell, claimed, SUMMING_UP, NEW, model)
    summed_up = [message.text for message in asked.requests[0].messages[:-1]]
    assert summed_up[:2] == ["question 0", "answer 0"]
    assert len(summed_up) == shown.summary.messages == shown.start
    assert [message.text for message in shown.messages][-2:] == ["question 21", "answer 21"]
    await cell.end(claimed)
