"""A session keeps where its window began, so that a turn costs the same however long its session is."""

from support.cells import open_cell

from antiphon.model import Message, Usage
from antiphon.request import AgentSpec
from antiphon.window import Window
from antiphon_worker.history_window import load_history
from antiphon_worker.loop import LoopResult

NEW = [Message.user("and now?")]


def said(turn: int) -> list[bytes]:
    question, answer = Message.user(f"question {turn}"), Message.assistant(f"answer {turn}")
    question.turn_id = answer.turn_id = f"t{turn}"
    return [question.to_json(), answer.to_json()]


def result(tokens: int = 0) -> LoopResult:
    return LoopResult([Message.assistant("x")], Usage(tokens, tokens), "end", None, "m")


async def play(cell, agent: AgentSpec, turns: int, start: int = 0):
    """Run turns with an agent; gives how many messages each claim brought, and what the last one was shown."""
    loaded, shown = [], None
    for turn in range(start, start + turns):
        await cell.put(f"t{turn}")
        claimed = await cell.take_one()
        loaded.append(len(claimed.history))
        shown = await load_history(cell, claimed, agent, NEW)
        assert await cell.end(claimed, messages=said(turn), window=shown.after(result()))
    return loaded, shown


async def test_a_claim_brings_the_window_and_not_the_whole_history(redis_url):
    async with open_cell(redis_url) as cell:
        loaded, shown = await play(cell, AgentSpec("scripted", "m", window=3), 60)
        assert max(loaded[10:]) <= 8
        assert [message.text for message in shown.messages][-2:] == ["question 58", "answer 58"]
        assert len(shown.messages) == 2 * 2 or len(shown.messages) == 3 * 2
        assert await cell.redis.llen(cell.keys.history("s")) == 120


async def test_a_window_of_tokens_begins_where_it_began_until_it_is_full(redis_url):
    async with open_cell(redis_url) as cell:
        agent, starts = AgentSpec("scripted", "m", window=Window(tokens=200)), []
        for turn in range(40):
            _, shown = await play(cell, agent, 1, start=turn)
            starts.append(shown.start)
        assert starts == sorted(starts)
        assert starts[-1] > 0
        assert len(set(starts)) < len(starts) / 2


async def test_an_agent_that_is_shown_everything_gets_the_front_part_as_well(redis_url):
    async with open_cell(redis_url) as cell:
        await play(cell, AgentSpec("scripted", "m", window=2), 20)
        _, shown = await play(cell, AgentSpec("scripted", "m"), 1, start=20)
        assert [message.text for message in shown.messages][:2] == ["question 0", "answer 0"]
        assert len(shown.messages) == 40
        assert shown.start is None
