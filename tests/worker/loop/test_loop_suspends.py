"""Calls that wait for decisions: the loop ends with them, and goes on with what was decided."""

import asyncio
import builtins
from collections import Counter
from dataclasses import dataclass

import pytest
from support.journals import Crash, Journal

from antiphon.input.request import NewerRecord, refuse_newer
from antiphon.model import CallerTool, Decision, Image, Message, Text, ToolCall
from antiphon.testing import script, tool_call
from antiphon.tools import Context, tool
from antiphon.tools.approval import ApprovalRule
from antiphon_worker.loop.input import LoopInput, Rules
from antiphon_worker.loop.loop import Suspended, run_loop
from antiphon_worker.loop.step_calls import UNKNOWN_WHETHER_RUN
from antiphon_worker.loop.steps import ToolFinished, ToolStarted, decode_entry, encode_entry
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.loop.unfinished import Unfinished
from antiphon_worker.providers.scripted import ScriptedProvider

OPEN_PAGE = CallerTool(
    "open_page",
    "Open a page.",
    {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
    timeout=60,
)


class Turn:
    """A turn as a store keeps it: its journal and its decisions. Attempts follow each other."""

    def __init__(self, lines, tools=(), *, caller_tools=(), rules=None, crash_at=0, **options):
        self.lines = lines
        self.inp = LoopInput(
            "any",
            new_messages=[Message.user("Go")],
            tools=tools,
            caller_tools=list(caller_tools),
            rules=rules or Rules(),
            **options,
        )
        self.stored: list[bytes] = []
        self.decisions: dict[str, Decision] = {}
        self.crash_at = crash_at
        self.writes = 0
        self.lost = self.lost_for_good = set()  # calls whose results were not stored
        self.entries = []
        self.sink = Journal()

    async def append(self, entries, events):
        self.lost = {entry.result.call_id for entry in entries if isinstance(entry, ToolFinished)}
        self._write()  # dies before it is stored
        self.lost = set()
        self.stored += [encode_entry(entry) for entry in entries]
        self._write()  # dies before it is told so

    async def now(self):
        return 0

    async def checkpoint(self):
        pass

    async def steered(self, step):
        return []

    def _write(self):
        self.writes += 1
        if self.writes == self.crash_at:
            raise Crash(*self.lost)

    async def attempt(self):
        self.entries = [decode_entry(data) for data in self.stored]
        provider = ScriptedProvider(self.lines)
        context = Context("s", "t")
        return await run_loop(provider, self.inp, ToolBox(), self, self.sink, context, self.decisions)

    def decide(self, *decisions):
        self.decisions = {decision.call_id: decision for decision in decisions}

    def written(self, kind):
        return [entry for entry in map(decode_entry, self.stored) if isinstance(entry, kind)]


@tool(approval=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


@tool
async def look() -> str:
    return "seen"


def results_of(found):
    return [result for message in found.messages for result in message.tool_results]


async def suspended(turn):
    found = await turn.attempt()
    assert isinstance(found, Suspended)
    return found.calls


async def test_calls_that_need_no_decision_run_and_the_others_wait():
    turn = Turn(script([tool_call("pay", amount=5), tool_call("look")], "Done."), [pay, look])
    [call] = await suspended(turn)
    assert (call.name, call.arguments, call.kind, call.until) == ("pay", {"amount": 5}, "approval", None)
    assert [entry.result.text for entry in turn.written(ToolFinished)] == ["seen"]
    turn.decide(Decision(call.call_id, "approve", by="ada", at=17))
    found = await turn.attempt()
    assert [result.text for result in results_of(found)] == ["paid 5", "seen"]
    assert found.messages[1].decisions == [Decision(call.call_id, "approve", by="ada", at=17)]


async def test_a_rejected_call_does_not_run_and_the_model_is_told_by_whom_and_why():
    turn = Turn(script([tool_call("pay", amount=5)], "Done."), [pay])
    [call] = await suspended(turn)
    turn.decide(Decision(call.call_id, "reject", by="ada", reason="Too much."))
    [result] = results_of(await turn.attempt())
    assert result.is_error
    assert result.text == "This tool was not run: ada rejected the call: Too much."


async def test_a_call_runs_with_the_arguments_of_whoever_approved_it_and_the_model_is_told():
    turn = Turn(script([tool_call("pay", amount=5)], "Done."), [pay])
    [call] = await suspended(turn)
    turn.decide(Decision(call.call_id, "approve", by="ada", arguments={"amount": 3}))
    found = await turn.attempt()
    assert found.messages[0].tool_calls[0].arguments == {"amount": 5}  # what the model said stays
    assert results_of(found)[0].text == '[ada changed the arguments to {"amount":3}]\npaid 3'


async def test_arguments_that_do_not_match_the_tool_are_an_error_that_the_model_reads():
    turn = Turn(script([tool_call("pay", amount=5)], "Done."), [pay])
    [call] = await suspended(turn)
    turn.decide(Decision(call.call_id, "approve", arguments={"sum": 3}))
    [result] = results_of(await turn.attempt())
    assert result.is_error
    assert "there is no argument 'sum'" in result.text


async def test_nobody_is_asked_about_a_call_that_cannot_run():
    turn = Turn(script([tool_call("pay", sum=5), tool_call("open_page", uri="x")], "Done."), [pay],
                caller_tools=[OPEN_PAGE])  # fmt: skip
    first, second = results_of(await turn.attempt())
    assert "'amount' is missing" in first.text
    assert second.is_error
    assert second.text.startswith("The arguments do not match open_page:")


async def test_the_caller_gives_the_result_of_a_tool_without_code():
    turn = Turn(script([tool_call("open_page", url="x")], "Done."), caller_tools=[OPEN_PAGE])
    [call] = await suspended(turn)
    assert (call.kind, call.seconds, call.at_limit) == ("tool", 60, "reject")
    turn.decide(Decision(call.call_id, "result", content=[Text("A page."), Image(url="https://a/b.png")]))
    [result] = results_of(await turn.attempt())
    assert result.content == [Text("A page."), Image(url="https://a/b.png")]
    assert turn.lines.requests[0].tools[0].name == "open_page"


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        ({"kind": "result", "content": "no such page", "is_error": True}, "no such page"),
        ({"kind": "reject", "reason": "Nobody decided within the time limit."}, "within the time limit."),
        ({"kind": "approve"}, "it is the caller's, who gave no result."),
    ],
)
async def test_a_tool_of_the_caller_may_fail(decision, said):
    turn = Turn(script([tool_call("open_page", url="x")], "Done."), caller_tools=[OPEN_PAGE])
    [call] = await suspended(turn)
    turn.decide(Decision(call.call_id, **decision))
    [result] = results_of(await turn.attempt())
    assert result.is_error
    assert result.text.endswith(said)


async def test_a_long_result_of_the_caller_is_shortened_as_that_of_a_tool():
    turn = Turn(script([tool_call("open_page", url="x")], "Done."), caller_tools=[OPEN_PAGE])
    [call] = await suspended(turn)
    turn.decide(Decision(call.call_id, "result", content="x" * 100_000))
    [result] = results_of(await turn.attempt())
    assert len(result.text) < 70_000


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_of_the_arguments_says_which_calls_wait(is_async):
    def large(arguments):
        return arguments["amount"] > 100

    async def large_async(arguments):
        await asyncio.sleep(0)
        return large(arguments)

    @tool(approval=large_async if is_async else large, approval_timeout=30, approval_at_limit="fail")
    async def refund(amount: int) -> str:
        return f"refunded {amount}"

    lines = script([tool_call("refund", amount=5), tool_call("refund", amount=500)], "Done.")
    turn = Turn(lines, [refund])
    [call] = await suspended(turn)
    assert (call.arguments, call.seconds, call.at_limit) == ({"amount": 500}, 30, "fail")


async def test_a_rule_that_fails_lets_the_call_wait(caplog):
    @tool(approval=lambda arguments: arguments["no such"])
    async def refund(amount: int) -> str:
        return "refunded"

    turn = Turn(script([tool_call("refund", amount=5)], "Done."), [refund])
    [call] = await suspended(turn)
    assert call.name == "refund"
    assert "KeyError" in caplog.text


@dataclass
class Amount:
    """A parameter's type that refuses all values, with an exception of its own choice."""

    error: str

    def __post_init__(self):
        raise getattr(builtins, self.error)("no such amount")


@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
async def test_a_parameter_whose_type_raises_harms_only_its_call(error):
    @tool(approval=True)
    async def refund(amount: Amount) -> str:
        return "refunded"

    turn = Turn(script([tool_call("refund", amount={"error": error})], "Done."), [refund])
    [call] = await suspended(turn)
    turn.decide(Decision(call.call_id, "approve"))
    [result] = results_of(await turn.attempt())
    assert result.text == f"{error}: no such amount"


async def test_a_rule_cannot_change_what_runs():
    def change(arguments):
        arguments["amount"] = 0
        return False

    @tool(approval=change)
    async def refund(amount: int) -> str:
        return f"refunded {amount}"

    [result] = results_of(await Turn(script([tool_call("refund", amount=5)], "Done."), [refund]).attempt())
    assert result.text == "refunded 5"


async def test_a_rule_is_not_asked_again_about_a_call_that_has_waited():
    asked = []

    @tool(approval=lambda arguments: asked.append(arguments) or True)
    async def refund(amount: int) -> str:
        return "refunded"

    turn = Turn(script([tool_call("refund", amount=5)], "Done."), [refund])
    assert await suspended(turn) == await suspended(turn)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("rules", "waits", "at_limit"),
    [
        (Rules(ApprovalRule(True)), True, "reject"),
        (Rules(ApprovalRule(("look",), 60, "approve")), True, "approve"),
        (Rules(ApprovalRule(lambda call: call.name == "look", 60)), True, "reject"),
        (Rules(ApprovalRule(("pay",))), False, ""),
        (Rules(sent=ApprovalRule(("look",), 60, "approve")), True, "approve"),
        (Rules(ApprovalRule(True), ApprovalRule(("look",), 60, "approve")), True, "reject"),
        (Rules(ApprovalRule(True, 5, "fail"), ApprovalRule(False, 60, "approve")), True, "fail"),
    ],
)
async def test_the_rule_of_an_agent_adds_to_those_of_its_tools(rules, waits, at_limit):
    turn = Turn(script([tool_call("look")], "Done."), [look], rules=rules)
    found = await turn.attempt()
    assert isinstance(found, Suspended) is waits
    if isinstance(found, Suspended):
        assert found.calls[0].at_limit == at_limit


async def test_an_agent_that_came_with_a_turn_cannot_approve_what_the_app_lets_wait():
    sent = ApprovalRule(False, 1, "approve")
    turn = Turn(script([tool_call("pay", amount=5)], "Done."), [pay], rules=Rules(sent=sent))
    [call] = await suspended(turn)
    assert (call.seconds, call.at_limit) == (1, "reject")


async def test_a_decision_is_not_taken_for_a_later_call_with_the_same_id():
    lines = script(
        ToolCall("call_1", "pay", {"amount": 5}), ToolCall("call_1", "pay", {"amount": 500}), "Done."
    )
    turn = Turn(lines, [pay])
    [first] = await suspended(turn)
    turn.decide(Decision(first.call_id, "approve"))
    [second] = await suspended(turn)
    assert second.arguments == {"amount": 500}
    assert second.call_id != first.call_id


async def test_calls_of_the_last_step_do_not_wait():
    turn = Turn(script(["Let me pay.", tool_call("pay", amount=5)]), [pay], max_steps=1)
    found = await turn.attempt()
    assert found.stop_reason == "limit"
    assert "not run" in results_of(found)[0].text


async def test_a_worker_that_knows_no_decisions_gives_the_turn_back(monkeypatch):
    turn = Turn(script([tool_call("pay", amount=5)], "Done."), [pay])
    await suspended(turn)
    monkeypatch.setitem(refuse_newer.__globals__["KNOWN"], "journal entry", 1)
    with pytest.raises(NewerRecord):
        [decode_entry(data) for data in turn.stored]


async def test_a_turn_that_is_stopped_says_that_an_undecided_call_was_not_run():
    turn = Turn(script([tool_call("pay", amount=5), tool_call("look")], "Done."), [pay, look])
    await suspended(turn)
    entries = [decode_entry(data) for data in turn.stored]
    _, said = Unfinished([], entries, "").kept("partial")
    assert [result.text for result in said[-1].tool_results] == [
        "This tool was not run: the turn ended while the call waited for a decision.",
        "seen",
    ]
    for kind, told in [
        ("approve", "before it began"),
        ("reject", "ada rejected the call"),
        ("result", "given"),
    ]:
        decision = Decision("call_1", kind, by="ada", content="given")
        _, said = Unfinished([], entries, "", {"call_1": decision}).kept("partial")
        assert told in said[-1].tool_results[0].text
        assert [(one.by, one.content) for one in said[-1].decisions] == [("ada", "")]


async def test_that_an_approved_call_has_begun_is_known_before_it_runs_and_written_once():
    seen = []

    @tool(approval=True)
    async def buy() -> str:
        """Buy."""
        seen.append(turn.written(ToolStarted))
        if len(seen) == 1:
            raise Crash
        return "bought"

    turn = Turn(script([tool_call("buy")], "Done."), [buy])
    [call] = await suspended(turn)
    assert turn.written(ToolStarted) == []
    approved = Decision(call.call_id, "approve", by="ada")
    turn.decide(approved)
    with pytest.raises(Crash):
        await turn.attempt()
    entries = [decode_entry(data) for data in turn.stored]
    _, said = Unfinished([], entries, "", {call.call_id: approved}).kept("partial")
    assert "unknown what it has done" in said[-1].tool_results[0].text
    assert results_of(await turn.attempt())[0].text == "bought", "it may run again"
    assert seen == [[ToolStarted(1, call.call_id, again=True)]] * 2


# A turn of five steps with parallel tools, approvals and a tool of the caller.

STEPS = (
    [tool_call("plain", n=1), tool_call("plain", n=2)],
    [tool_call("careful", n=3), tool_call("plain", n=4), tool_call("careful", n=5)],
    [tool_call("open_page", url="x"), tool_call("once", n=6), tool_call("careful_once", n=7)],
    [tool_call("failing", n=8), tool_call("open_page", url="y")],
)


def long_turn(crash_at=0):
    ran = Counter()

    @tool
    async def plain(n: int) -> str:
        ran[n] += 1
        return f"plain {n}"

    @tool(approval=True)
    async def careful(n: int) -> str:
        ran[n] += 1
        return f"careful {n}"

    @tool(at_most_once=True)
    async def once(n: int) -> str:
        ran[n] += 1
        return f"once {n}"

    @tool(at_most_once=True, approval=True)
    async def careful_once(n: int) -> str:
        ran[n] += 1
        return f"careful {n}"

    @tool
    async def failing(n: int) -> str:
        ran[n] += 1
        raise ValueError(n)

    said = [[{"type": "tool_call", "call_id": "", "name": call.name, "arguments": call.arguments} for call in step]
            for step in STEPS]  # fmt: skip
    tools = [plain, careful, once, careful_once, failing]
    turn = Turn(
        None, tools, caller_tools=[OPEN_PAGE], params={"script": [*said, "The end"]}, crash_at=crash_at
    )
    return turn, ran


def decide_all(turn, calls, decided):
    """Every second approval is a rejection, and the decisions are made once."""
    made = []
    for call in calls:
        if call.kind == "tool":
            made.append(Decision(call.call_id, "result", content=f"page {call.arguments['url']}"))
        elif call.arguments["n"] == 5:
            made.append(Decision(call.call_id, "reject", by="ada", reason="No."))
        else:
            made.append(Decision(call.call_id, "approve", by="bob"))
        assert decided.setdefault(call.call_id, made[-1]) == made[-1]
    turn.decide(*made)


def play(turn):
    """Attempts follow each other, with decisions between them, until one ends the turn."""
    decided, crashes = {}, 0
    with asyncio.Runner() as runner:
        while True:
            try:
                found = runner.run(turn.attempt())
            except Crash as crash:
                crashes += 1
                turn.lost_for_good = set(crash.args)
                continue
            if not isinstance(found, Suspended):
                return found, crashes
            decide_all(turn, found.calls, decided)


def test_after_a_crash_at_any_write_of_the_journal_the_turn_ends_with_the_same_history():
    turn, ran = long_turn()
    undisturbed, _ = play(turn)
    once = {1: 1, 2: 1, 3: 1, 4: 1, 6: 1, 7: 1, 8: 1}  # 5 was rejected
    assert ran == once
    decided = [one.by for message in undisturbed.messages for one in message.decisions]
    assert decided == ["bob", "ada", None, "bob", None]
    numbers = {call.call_id: call.arguments.get("n") for m in undisturbed.messages for call in m.tool_calls}
    for crash_at in range(1, turn.writes + 1):
        again, times = long_turn(crash_at)
        found, crashes = play(again)
        assert crashes == 1
        unknown = {r.call_id for r in results_of(found) if r.text == UNKNOWN_WHETHER_RUN}
        assert {numbers[call] for call in unknown} <= {6, 7}  # the at_most_once ones
        again_run = {numbers[call] for call in again.lost_for_good - unknown} & set(once)
        began = {numbers[call] for call in unknown} - {numbers[call] for call in again.lost_for_good}
        assert times == Counter(once) + Counter(again_run) - Counter(began), crash_at
        for message, expected in zip(found.messages, undisturbed.messages, strict=True):
            assert message.decisions == expected.decisions
            for part, other in zip(message.parts, expected.parts, strict=True):
                assert part == other or part.call_id in unknown
        assert found.usage.output_tokens == undisturbed.usage.output_tokens
