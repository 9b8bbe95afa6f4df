"""The events of one turn, as `antiphon explain` and `antiphon graph` read them."""

import pytest
from support.cells import body

from antiphon.input.ids import TurnId
from antiphon.wire.lists import inspection
from antiphon.wire.lists.inspection import turn_log

pytestmark = pytest.mark.one_server


async def read(cell, monkeypatch, page):
    """The numbers of the steps that have finished, and how often Redis was asked."""
    asked, log = [], cell.log

    async def counted(*given, **options):
        asked.append(given)
        return await log(*given, **options)

    monkeypatch.setattr(cell, "log", counted)
    monkeypatch.setattr(inspection, "PAGE", page)
    events = await turn_log(cell, await cell.turn(TurnId("t1")))
    return [event.step for event in events if event.type == "step_finished"], len(asked)


@pytest.mark.parametrize(("page", "asked"), [(1, 9), (2, 5), (3, 3), (8, 2), (9, 1)])
async def test_every_event_is_read_once_and_nothing_after_the_last(page, asked, cell, monkeypatch):
    """Eight events: two of the beginning, and six steps."""
    turn = await cell.started("t1")
    await cell.say(turn, 1, *[body("step_finished", step=number) for number in range(1, 7)])
    assert await read(cell, monkeypatch, page) == ([1, 2, 3, 4, 5, 6], asked)


async def test_of_a_turn_that_has_ended_nothing_after_its_end_is_read(cell, monkeypatch):
    turn = await cell.started("t1")
    await cell.say(turn, 1, body("step_finished", step=1))
    await cell.end(turn)
    await cell.end(await cell.started("t2"))
    assert await read(cell, monkeypatch, 100) == ([1], 1)
