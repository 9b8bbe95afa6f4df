"""Durable steps and sleeps of tools and turn functions, which survive crashes anywhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from support.crashing_turn import Turn
from support.journals import Crash

from antiphon.errors import StepFailed, TurnFailed, UsageError
from antiphon.events import StepRecorded
from antiphon.ext.turns import ModelAnswer
from antiphon.input.request import KNOWN, NewerRecord
from antiphon.model import Decision, Message, ToolCall
from antiphon.testing import script, tool_call
from antiphon.tools import Context, tool
from antiphon_worker.loop.loop import Suspended
from antiphon_worker.loop.steps import DurableResult, DurableSleep, DurableStart, decode_entry, encode_entry


def texts(found):
    return [result.text for message in found.messages for result in message.tool_results]


def order_tool(ran, **options):
    """A tool that waits for a day between two steps."""

    @tool(**options)
    async def order(context: Context) -> str:
        reserved = await context.step("reserve", step_of(ran, "reserve"))
        await context.sleep(timedelta(days=1))
        charged = await context.step("charge", step_of(ran, "charge"), retries=2, at_most_once=True)
        return f"{reserved} {charged}"

    return order


def step_of(ran, name):
    async def run():
        ran[name] += 1
        return {name: ran[name]}

    return run


async def test_a_tool_sleeps_without_a_worker_and_goes_on_behind_its_steps():
    ran = Counter()
    turn = Turn(order_tool(ran))
    found = await turn.attempt()
    assert isinstance(found, Suspended)
    [wait] = found.calls
    assert (wait.name, wait.kind) == ("sleep", "sleep")
    assert 86_399 < wait.seconds <= 86_400
    assert turn.recorded() == ["reserve"]
    assert texts(await turn.run()) == ["{'reserve': 1} {'charge': 1}"]
    assert ran == {"reserve": 1, "charge": 1}
    assert [event.name for event in turn.events if isinstance(event, StepRecorded)] == ["reserve", "charge"]


@pytest.mark.parametrize("approval", [False, True])
@pytest.mark.parametrize("crash_at", range(2, 19))  # the model has answered
async def test_a_turn_that_dies_at_any_write_runs_each_finished_step_once(crash_at, approval):
    ran = Counter()
    turn = Turn(order_tool(ran, approval=approval), crash_at=crash_at)
    found = await turn.run()
    assert ran["reserve"] <= 2
    assert ran["charge"] == 1 or (
        ran["charge"] == 0 and "unknown whether step 'charge' ran" in texts(found)[0]
    )
    assert Counter(turn.recorded()) == {"reserve": 1, "sleep": 1, "charge": 1}
    if approval:
        [decision] = found.messages[1].decisions
        assert decision.by == "ada", "the sleep does not hide who approved the call"


async def test_what_was_approved_with_other_arguments_keeps_them_through_a_sleep():
    @tool(approval=True)
    async def pay(amount: int, context: Context) -> str:
        await context.sleep(3600)
        return f"paid {amount}"

    turn = Turn(pay, lines=script([tool_call("pay", amount=5)], "Done."))
    [call] = (await turn.attempt()).calls
    turn.decisions = {call.call_id: Decision(call.call_id, "approve", by="ada", arguments={"amount": 3})}
    [wait] = (await turn.attempt()).calls
    turn.decisions = {wait.id: Decision(wait.id, "approve")}
    assert texts(await turn.attempt()) == ['[ada changed the arguments to {"amount":3}]\npaid 3']


async def test_an_at_most_once_tool_may_go_on_after_it_has_slept_and_not_after_a_crash():
    ran = Counter()

    def tools(stop):
        @tool(at_most_once=True)
        async def send(context: Context) -> str:
            await context.sleep(3600)
            ran["sent"] += 1
            if stop:
                raise Crash
            return "sent"

        return send

    turn = Turn(tools(stop=True))
    [wait] = (await turn.attempt()).calls
    turn.decisions = {wait.id: Decision(wait.id, "approve")}
    with pytest.raises(Crash):
        await turn.attempt()
    assert "unknown whether this tool ran" in texts(await turn.attempt())[0]
    assert ran["sent"] == 1


async def test_a_sleep_that_was_written_before_a_crash_lasts_no_longer():
    @tool
    async def nap(context: Context) -> str:
        await context.sleep(3600)
        return "woken"

    turn = Turn(nap)
    [wait] = (await turn.attempt()).calls
    [entry] = [entry for entry in turn.entries if isinstance(entry, DurableSleep)]
    turn.stored = [encode_entry(one) for one in turn.entries if one != entry]
    entry.until -= 3_000_000
    turn.stored.append(encode_entry(entry))
    [again] = (await turn.attempt()).calls
    assert wait.id == again.id
    assert 590 < again.seconds <= 600
    entry.until = 1
    turn.stored[-1] = encode_entry(entry)
    assert texts(await turn.attempt()) == ["woken"]


async def test_calls_that_sleep_wait_for_those_that_run():
    ended, asleep = [], asyncio.Event()

    @tool
    async def slow() -> str:
        await asleep.wait()
        ended.append("slow")
        return "seen"

    @tool
    async def nap(context: Context) -> str:
        asleep.set()
        await context.sleep(3600)
        return "woken"

    turn = Turn(nap, slow)
    assert [one.name for one in (await turn.attempt()).calls] == ["sleep"]
    assert ended == ["slow"]
    assert texts(await turn.run()) == ["woken", "seen"]
    assert ended == ["slow"]


async def test_steps_that_run_in_parallel_are_numbered_as_they_were_asked_for():
    ran = Counter()

    @tool
    async def both(context: Context) -> str:
        fast_ended = asyncio.Event()

        async def slow():
            await fast_ended.wait()
            ran["slow"] += 1
            return "slow"

        async def fast():
            fast_ended.set()
            ran["fast"] += 1
            return "fast"

        found = await asyncio.gather(
            context.step("work", slow), context.step("work", fast), context.sleep(3600)
        )
        return " ".join(map(str, found))

    turn = Turn(both)
    assert [wait.name for wait in (await turn.attempt()).calls] == ["sleep"]
    assert turn.recorded() == ["work#2", "work"], "both ended before the turn was suspended"
    assert texts(await turn.run()) == ["slow fast None"]
    assert ran == {"slow": 1, "fast": 1}


async def test_a_group_of_tasks_may_sleep_too():
    @tool
    async def group(context: Context) -> str:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(context.sleep(3600))
        return "woken"

    assert texts(await Turn(group).run()) == ["woken"]


async def test_a_step_that_fails_fails_again_without_running():
    ran = Counter()

    @tool
    async def order(context: Context) -> str:
        async def charge():
            ran["charge"] += 1
            raise ValueError("The card was declined.")

        try:
            await context.step("charge", charge)
        except StepFailed as exc:
            await context.sleep(3600)
            return exc.message
        return "charged"

    found = await Turn(order).run()
    assert texts(found) == ["Step 'charge' failed: ValueError: The card was declined."]
    assert ran["charge"] == 1


async def test_a_turn_whose_code_asks_for_another_step_fails_with_both_names():
    ran = Counter()
    turn = Turn(order_tool(ran))
    await turn.attempt()

    @tool
    async def order(context: Context) -> str:
        with pytest.raises(BaseException):  # noqa: B017 - a tool that catches everything changes nothing
            await context.step("check", step_of(ran, "check"))
        return "checked"

    turn.tools = [order]
    with pytest.raises(TurnFailed, match=r"has 'reserve' as number 1 .* asks for 'check'") as caught:
        await turn.attempt()
    assert caught.value.code == "step_changed"
    assert ran == {"reserve": 1}


async def test_a_synchronous_tool_is_told_to_be_asynchronous():
    @tool
    def order(context: Context) -> str:
        context.step("charge", print)
        return "charged"

    assert "define the tool with `async def`" in texts(await Turn(order).run())[0]


async def test_a_step_that_outlives_its_call_is_awaited_and_a_later_one_refused():
    late, over = [], asyncio.Event()

    @tool
    async def hasty(context: Context) -> str:
        begun = asyncio.Event()

        async def work():
            begun.set()
            await asyncio.sleep(0)
            return 1

        async def again():
            await over.wait()
            await context.step("late", work)

        late.append(asyncio.create_task(context.step("work", work)))
        late.append(asyncio.create_task(again()))
        await begun.wait()
        return "done"

    turn = Turn(hasty)
    assert texts(await turn.run()) == ["done"]
    assert turn.recorded() == ["work"]
    over.set()
    with pytest.raises(UsageError, match="The tool call is over"):
        await late[1]


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("two words", print), {}, "is not a valid step name"),
        (("a#2", print), {}, "is not a valid step name"),
        (("a", print), {"retries": -1}, "retries= must be a number from 0, not -1"),
        (("a", print), {"retries": True}, "retries= must be a number from 0, not True"),
        (("a", print), {"timeout": 0}, "timeout= must be a positive number of seconds or None, not 0"),
    ],
)
async def test_a_step_with_wrong_arguments_is_refused_at_once(arguments, options, said):
    with pytest.raises(UsageError, match=said):
        Context().step(*arguments, **options)


@pytest.mark.parametrize("duration", [-1, timedelta(days=31), float("nan"), "1h", True])
async def test_a_sleep_has_bounds(duration):
    with pytest.raises(UsageError, match="from 0 to 30 days"):
        Context().sleep(duration)


async def test_a_result_without_a_json_form_is_an_error_that_names_the_step():
    with pytest.raises(StepFailed, match="cannot be written as JSON"):
        await Context().step("a", object)
    with pytest.raises(StepFailed, match=r"it did not return within 0\.01 s"):
        await Context().step("a", asyncio.Event().wait, timeout=0.01)


@pytest.mark.parametrize("kind", [DurableStart, DurableSleep, DurableResult])
def test_an_older_release_leaves_a_turn_with_durable_entries_to_a_newer_one(monkeypatch, kind):
    data = encode_entry(kind(1, "c", 1, "a", **({"until": 1} if kind is DurableSleep else {})))
    monkeypatch.setitem(KNOWN, "journal entry", 2)
    with pytest.raises(NewerRecord):
        decode_entry(data)


# Turn functions.


def workflow(ran):
    async def run(turn):
        async def ask():
            ran["asked"] += 1
            return ModelAnswer(Message.assistant([ToolCall("c1", "check")]))

        async def check(context):
            ran["checked"] += 1
            await context.sleep(7200)
            return await context.step("check", step_of(ran, "check"))

        paid = await turn.context.step("pay", step_of(ran, "pay"))
        await turn.context.sleep(timedelta(hours=8))
        await turn.model_call(ask)
        result = await turn.tool_call("c1", check)
        return f"{paid} {result.text}"

    return run


@pytest.mark.parametrize("crash_at", range(22))
async def test_a_turn_function_takes_steps_and_sleeps_through_crashes(crash_at):
    ran = Counter()
    turn = Turn(function=workflow(ran), crash_at=crash_at)
    found = await turn.run()
    assert found.messages[-1].text.startswith("{'pay': ")
    assert ran["check"] + ran["pay"] <= (3 if crash_at else 2)
    assert Counter(turn.recorded()) == {"pay": 1, "sleep": 2, "check": 1}


async def test_a_workflow_needs_no_model():
    async def run(turn):
        return str(await turn.context.step("add", lambda: 1 + 1))

    assert (await Turn(function=run).run()).messages[-1].text == "2"
