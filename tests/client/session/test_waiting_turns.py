"""Turns that wait for people and for the caller, in this process and on workers."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.eventually import wait_until
from support.fresh_python import printed_by

from antiphon import tool
from antiphon.errors import (
    AlreadyDecided,
    LimitReached,
    NotSuspended,
    TurnCancelled,
    TurnFailed,
    UsageError,
)
from antiphon.model import Usage
from antiphon.model.usage import Limits
from antiphon.testing import answer, script, tool_call
from antiphon.tools import Context

OPEN_PAGE = {
    "name": "open_page",
    "description": "Open a page.",
    "parameters": {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
}

UNDECIDED = "This tool was not run: the turn ended while the call waited for a decision."


@pytest.fixture
def shop(runtime):
    """An agent whose tool ``pay`` waits for an approval, what its tools did, and a script for its model."""

    class Shop:
        def __init__(self):
            self.ran = []
            self.runtime = runtime

        def agent(self, *entries, approval=True, **options):
            @tool(approval=approval, **options.pop("limit", {}))
            def pay(amount: int) -> str:
                """Pay."""
                self.ran.append(amount)
                return f"paid {amount}"

            @tool
            def look() -> str:
                """Look."""
                self.ran.append("look")
                return "seen"

            self.lines = script(*entries)
            runtime.use(self.lines)
            return runtime.agent(tools=[pay, look], **options)

    return Shop()


def open_calls(turn):
    """The calls that the turn waits for, by name, as soon as it does."""
    wait_until(lambda: turn.status() == "suspended", description="the turn is suspended")
    return {call.name: call for call in turn.info().calls}


def told(session):
    """The results of tools that the history tells of. Each has its call right before it."""
    messages = session.messages
    for index, message in enumerate(messages):
        if message.tool_calls:
            calls = [call.call_id for call in message.tool_calls]
            assert [result.call_id for result in messages[index + 1].tool_results] == calls
    return [result.text for message in messages for result in message.tool_results]


def test_a_turn_waits_until_its_call_is_approved(shop):
    session = shop.agent([tool_call("pay", amount=5), tool_call("look")], "Done.").session("s")
    turn = session.submit("Go")
    call = open_calls(turn)["pay"]
    assert (call.kind, call.arguments, shop.ran) == ("approval", {"amount": 5}, ["look"])
    assert call.until > turn.created
    turn.approve(call.call_id, by="ada")
    assert turn.result(20).text == "Done."
    assert told(session) == ["paid 5", "seen"]
    assert shop.ran == ["look", 5]
    [decision] = session.messages[2].decisions
    assert (decision.call_id, decision.kind, decision.by) == (call.call_id, "approve", "ada")
    assert turn.created <= decision.at <= turn.ended


def test_the_events_say_what_waits_and_who_decided(shop):
    turn = shop.agent(tool_call("pay", amount=5), "Done.").session("s").submit("Go")
    turn.reject(open_calls(turn)["pay"].call_id, reason="No.", by="ada")
    turn.result(20)
    events = [
        event for event in turn.stream() if event.type in ("turn_suspended", "turn_resumed", "turn_finished")
    ]
    assert [event.type for event in events] == ["turn_suspended", "turn_resumed", "turn_finished"]
    assert [call.name for call in events[0].calls] == ["pay"]
    [decision] = events[1].decisions
    assert (decision.kind, decision.by, decision.reason) == ("reject", "ada", "No.")
    assert [event.step for event in events[:2]] == [1, 1]


def test_the_first_decision_counts(shop):
    turn = (
        shop.agent([tool_call("pay", amount=5), tool_call("pay", amount=6)], "Done.")
        .session("s")
        .submit("Go")
    )
    first, second = wait_for_two(turn)
    turn.reject(first.call_id, reason="No.", by="ada")
    with pytest.raises(AlreadyDecided) as raised:
        turn.approve(first.call_id, by="bob")
    assert (raised.value.decision.kind, raised.value.decision.by) == ("reject", "ada")
    assert [call.call_id for call in turn.info().calls] == [second.call_id]
    with pytest.raises(NotSuspended, match="has no pending tool call 'nobody'"):
        turn.approve("nobody")
    with pytest.raises(UsageError, match="waits to be approved or rejected"):
        turn.tool_result(second.call_id, "x")
    turn.approve(second.call_id)
    turn.result(20)
    assert shop.ran == [6]
    with pytest.raises(AlreadyDecided):
        turn.approve(first.call_id)
    with pytest.raises(NotSuspended, match="is finished") as ended:
        turn.approve("nobody")
    assert ended.value.status == "finished"


def wait_for_two(turn):
    wait_until(lambda: turn.status() == "suspended", description="the turn is suspended")
    return turn.info().calls


def test_of_decisions_at_once_one_counts(shop):
    turn = shop.agent(tool_call("pay", amount=5), "Done.").session("s").submit("Go")
    call, start = open_calls(turn)["pay"], threading.Barrier(10)

    def decide(number):
        start.wait()
        try:
            turn.approve(call.call_id, by=str(number), arguments={"amount": number})
        except AlreadyDecided as late:
            return late.decision.by
        return str(number)

    with ThreadPoolExecutor(10) as threads:
        by = set(threads.map(decide, range(10)))
    turn.result(20)
    assert len(by) == 1
    assert shop.ran == [int(by.pop())]


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        (True, "paid 5"),
        (False, "This tool was not run: the caller rejected the call."),
        ("Too much.", "This tool was not run: the caller rejected the call: Too much."),
        ({"amount": 3}, '[the caller changed the arguments to {"amount":3}]\npaid 3'),
    ],
)
def test_a_function_of_the_caller_approves(verdict, result, shop):
    session = shop.agent(tool_call("pay", amount=5), "Done.").session("s")
    assert session.run("Go", on_approval=lambda call: verdict).text == "Done."
    assert told(session) == [result]


def test_a_function_of_the_caller_is_the_tool(shop):
    calls = [tool_call("open_page", url="x"), tool_call("look")]
    session = shop.agent(calls, tool_call("open_page", url="y"), "Done.", caller_tools=[OPEN_PAGE]).session(
        "s"
    )
    asked = []

    def open_page(call):
        asked.append(call.name)
        if call.arguments["url"] == "y":
            raise LookupError("no such page")
        return {"title": "X"}

    assert session.run("Go", on_tool=open_page).text == "Done."
    assert told(session) == ['{"title":"X"}', "seen", "LookupError: no such page"]
    assert asked == ["open_page", "open_page"]
    assert [one.name for one in shop.lines.requests[0].tools] == ["pay", "look", "open_page"]


def test_a_function_of_the_caller_that_raises_stop_iteration_hangs_no_turn(shop):
    session = shop.agent(tool_call("open_page", url="x"), "Done.", caller_tools=[OPEN_PAGE]).session("s")
    assert session.run("Go", on_tool=lambda call: next(iter(()))).text == "Done."
    assert told(session) == ["RuntimeError: coroutine raised StopIteration"]


@pytest.mark.main_path
def test_a_function_of_the_caller_that_hangs_keeps_no_process_from_ending():
    code = (
        "import asyncio, threading\n"
        "from antiphon.model import OpenCall\n"
        "from antiphon.tools.approval import answers\n"
        "async def main():\n"
        "    begun, hang = threading.Event(), threading.Event()\n"
        "    def on_tool(call):\n"
        "        begun.set()\n"
        "        hang.wait()\n"
        "    calls = [OpenCall('c1', 'look', {}, 'tool', seconds=1.0, at_limit='reject')]\n"
        "    asking = asyncio.create_task(anext(answers(calls, on_tool, None)))\n"
        "    await asyncio.to_thread(begun.wait)\n"
        "    asking.cancel()\n"
        "    await asyncio.wait([asking])\n"
        "    print(asking.cancelled())\n"
        "asyncio.run(main())\n"
    )
    assert printed_by(code) == "True\n"


async def test_a_function_of_the_caller_may_be_async_and_its_tools_come_with_the_turn(shop):
    session = shop.agent(tool_call("open_page", url="x"), "Done.").session("s")

    async def open_page(call):
        await asyncio.sleep(0)
        return "a page"

    types = [
        event.type async for event in session.stream_async("Go", caller_tools=[OPEN_PAGE], on_tool=open_page)
    ]
    assert types.index("turn_suspended") < types.index("turn_resumed") < types.index("tool_result")
    history = await session.history_async()
    assert history[2].tool_results[0].text == "a page"
    await shop.runtime.aclose()


def test_an_error_in_a_function_that_approves_rolls_the_turn_back(shop):
    session = shop.agent(tool_call("pay", amount=5), "Done.").session("s")

    def fail(call):
        raise LookupError("nobody there")

    with pytest.raises(LookupError):
        session.run("Go", on_approval=fail)
    assert session.messages == []
    assert shop.ran == []


def test_the_result_of_a_tool_of_the_caller_comes_from_anywhere(shop):
    session = shop.agent(tool_call("open_page", url="x"), "Done.", caller_tools=[OPEN_PAGE]).session("s")
    turn = session.submit("Go")
    call = open_calls(turn)["open_page"]
    with pytest.raises(UsageError, match="waits for its result"):
        turn.approve(call.call_id)
    turn.tool_result(call.call_id, "no such page", is_error=True, by="browser")
    assert turn.result(20).tool_calls[0].is_error
    assert session.messages[2].decisions[0].by == "browser"


@pytest.mark.parametrize("at_limit", ["reject", "approve", "fail"])
def test_a_time_limit_decides(at_limit, shop):
    limit = {"approval_timeout": 0.2, "approval_at_limit": at_limit}
    session = shop.agent(tool_call("pay", amount=5), "Done.", limit=limit).session("s")
    turn = session.submit("Go")
    if at_limit == "fail":
        with pytest.raises(TurnFailed) as raised:
            turn.result(30)
        assert raised.value.code == "not_decided"
        assert (session.messages, shop.ran) == ([], [])
        assert results(turn) == [UNDECIDED]
        return
    turn.result(30)
    reason = "Nobody decided within the time limit."
    expected = (
        "paid 5" if at_limit == "approve" else f"This tool was not run: the call was rejected: {reason}"
    )
    assert told(session) == [expected]
    [decision] = session.messages[2].decisions
    assert (decision.kind, decision.by, decision.reason) == (at_limit, None, reason)


def results(turn):
    """The results of tools that the turn's own record tells of."""
    return [result.text for message in turn.info().messages for result in message.tool_results]


def test_what_was_decided_is_told_of_a_turn_that_fails_while_another_call_waits(shop):
    calls = [
        tool_call("pay", amount=5), tool_call("open_page", url="x"), tool_call("open_page", url="y"),
        tool_call("pay", amount=6), tool_call("look"),
    ]  # fmt: skip
    limit = {"approval_timeout": 3600}
    page = OPEN_PAGE | {"timeout": 1.0, "at_limit": "fail"}
    session = shop.agent(calls, "Next.", limit=limit, caller_tools=[page]).session("s")
    turn = session.submit("Go")
    wait_until(lambda: turn.status() == "suspended", description="the turn is suspended")
    first, second, _, fourth = turn.info().calls
    turn.tool_result(second.call_id, "a page", by="browser")
    turn.reject(fourth.call_id, reason="No.", by="ada")
    turn.approve(first.call_id, by="ada")
    with pytest.raises(TurnFailed):
        turn.result(30)
    told_of = [
        "This tool was not run: the turn ended while another call waited for a decision.", "a page", UNDECIDED,
        "This tool was not run: ada rejected the call: No.", "seen",
    ]  # fmt: skip
    assert results(turn) == told_of
    assert [one.by for one in turn.info().messages[1].decisions] == ["ada", "browser", "ada"]
    assert session.run("Next").text == "Next."
    note = next(one.text for one in shop.lines.requests[-1].messages if one.role == "system")
    assert "returned: a page" in note
    assert shop.ran == ["look"]


def test_a_decision_by_nobody_does_not_say_who_decided(shop):
    turn = shop.agent(tool_call("pay", amount=5), "Done.").session("s").submit("Go")
    call = open_calls(turn)["pay"]
    turn.approve(call.call_id)
    with pytest.raises(AlreadyDecided) as raised:
        turn.reject(call.call_id)
    assert raised.value.message == f"The call {call.call_id!r} was approved before."
    turn.result(20)


def test_a_decision_of_a_time_limit_says_so(shop):
    limit = {"approval_timeout": 0.2, "approval_at_limit": "reject"}
    turn = shop.agent(tool_call("pay", amount=5), "Done.", limit=limit).session("s").submit("Go")
    call = open_calls(turn)["pay"]
    turn.result(30)
    with pytest.raises(AlreadyDecided) as raised:
        turn.approve(call.call_id, by="ada")
    late = "Nobody decided within the time limit."
    assert raised.value.message == f"The call {call.call_id!r} was rejected before: {late}"


@pytest.mark.parametrize("said", [["Let me look. "], []])
def test_what_the_caller_gave_is_kept_where_a_limit_was_reached_meanwhile(said, shop):
    asks = answer(*said, tool_call("open_page", url="x"), tool_call("pay", amount=5), usage=Usage(60, 40))
    other = answer("Second.", usage=Usage(60, 40))
    limits = Limits(session_tokens=150)
    session = shop.agent(asks, other, caller_tools=[OPEN_PAGE], limits=limits).session("s")
    first = session.submit("1", while_suspended="continue")
    calls = open_calls(first)
    assert session.submit("2").result(20).text == "Second."
    first.approve(calls["pay"].call_id)
    first.tool_result(calls["open_page"].call_id, "a page")
    if said:
        assert first.result(20).limit == "session_tokens"
        assert told(session)[0] == "a page"
        assert told(session)[1].startswith("This tool was not run: the turn had reached its limit")
    else:
        with pytest.raises(LimitReached):
            first.result(20)
        assert results(first)[0] == "a page"
    assert session.usage.tokens == 200
    assert shop.ran == []


def test_a_turn_that_others_passed_by_counts_for_its_session_where_it_ends_by_its_limit(shop):
    limit = {"approval_timeout": 1.0, "approval_at_limit": "fail"}
    lines = [
        answer(tool_call("pay", amount=5), usage=Usage(60, 40, 10, cost=0.5)),
        answer("Second.", usage=Usage(6, 4)), answer("Third.", usage=Usage(1, 1, cost=0.25)),
    ]  # fmt: skip
    session = shop.agent(*lines, limit=limit).session("s")
    first = session.submit("1", while_suspended="continue")
    open_calls(first)
    assert session.submit("2").result(20).text == "Second."
    with pytest.raises(TurnFailed):
        first.result(30)
    assert first.usage.tokens == 100
    assert session.usage == Usage(66, 44, 10, cost=0.5, unpriced_tokens=10)
    assert session.submit("3").result(20).text == "Third."
    assert session.usage == Usage(67, 45, 10, cost=0.75, unpriced_tokens=10)


@pytest.mark.parametrize(("keep", "kept"), [("partial", 3), ("steps", 0), ("nothing", 0)])
def test_a_suspended_turn_can_be_cancelled(keep, kept, shop):
    session = shop.agent([tool_call("pay", amount=5), tool_call("look")], "Next.").session("s")
    turn = session.submit("Go")
    call = open_calls(turn)["pay"]
    turn.cancel("not needed", keep=keep)
    with pytest.raises(TurnCancelled, match="not needed"):
        turn.result(20)
    assert len(session.messages) == kept
    if kept:
        assert told(session) == [
            UNDECIDED,
            "seen",
        ]
    with pytest.raises(NotSuspended):
        turn.approve(call.call_id)
    assert session.run("Next").text == "Next."
    assert shop.ran == ["look"]


def test_turns_wait_behind_a_suspended_one(shop):
    session = shop.agent(tool_call("pay", amount=5), "First.", "Second.").session("s")
    first, second = session.submit("1"), session.submit("2")
    call = open_calls(first)["pay"]
    assert second.status() == "waiting"
    assert session.status().waiting == [second.id]
    first.approve(call.call_id)
    assert [first.result(20).text, second.result(20).text] == ["First.", "Second."]
    assert [m.text for m in session.messages if m.role == "user"] == ["1", "2"]


def test_turns_pass_a_suspended_one_by_if_its_submitter_says_so(shop):
    session = shop.agent(tool_call("pay", amount=5), "Second.", "First.").session("s")
    first = session.submit("1", while_suspended="continue")
    call = open_calls(first)["pay"]
    assert session.submit("2").result(20).text == "Second."
    assert first.status() == "suspended"
    first.approve(call.call_id)
    assert first.result(20).text == "First."
    assert [m.text for m in session.messages if m.role == "user"] == ["2", "1"]
    assert [m.text for m in shop.lines.requests[-1].messages if m.role == "user"] == ["2", "1"]


def test_a_reader_who_leaves_rolls_a_suspended_turn_back(shop):
    session = shop.agent(tool_call("pay", amount=5), "Next.").session("s")
    for event in session.stream("Go"):
        if event.type == "turn_suspended":
            break
    assert session.run("Next").text == "Next."
    assert [message.text for message in session.messages] == ["Next", "Next."]


def test_a_turn_waits_several_times(shop):
    entries = [tool_call("pay", amount=n) for n in range(3)]
    session = shop.agent(*entries, "Done.").session("s")
    asked = []
    session.run("Go", on_approval=lambda call: asked.append(call.arguments["amount"]) or True)
    assert (asked, shop.ran) == ([0, 1, 2], [0, 1, 2])
    assert [len(message.decisions) for message in session.messages if message.role == "tool"] == [1, 1, 1]


def test_structured_output_comes_after_a_decision(shop):
    session = shop.agent(tool_call("pay", amount=5), {"paid": True}).session("s")
    schema = {"type": "object", "properties": {"paid": {"type": "boolean"}}, "required": ["paid"]}
    response = session.json("Go", schema=schema, on_approval=lambda call: True)
    assert response.output == {"paid": True}


def test_a_child_that_waits_keeps_the_tool_of_its_parent_waiting(runtime):
    runtime.use(script(tool_call("research"), tool_call("open_page", url="x"), "Found.", "Done."))
    inner = runtime.agent(caller_tools=[OPEN_PAGE], name="inner")

    @tool
    def research() -> str:
        """Look it up."""
        return inner.session("child").run("Look", on_tool=lambda call: call.arguments["url"]).text

    session = runtime.agent(tools=[research]).session("parent")
    assert session.run("Go").text == "Done."
    assert told(session) == ["Found."]
    assert told(inner.session("child")) == ["x"]


def test_variables_survive_a_suspension(runtime):
    @tool
    def note(context: Context) -> str:
        """Note."""
        context.variables["noted"] = context.variables.get("noted", 0) + 1
        return "noted"

    @tool(approval=True)
    def note_again(context: Context) -> str:
        """Note again."""
        context.variables["noted"] += 1
        return "noted again"

    runtime.use(script([tool_call("note"), tool_call("note_again")], "Done."))
    session = runtime.agent(tools=[note, note_again]).session("s")
    session.run("Go", on_approval=lambda call: True)
    assert session.variables == {"noted": 2}
