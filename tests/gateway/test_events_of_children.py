"""Child turns at a gateway: their calls are answered at the parent, and OpenAI's client does not see their events."""

import pytest
from support.openai_clients import calling

from antiphon import Agent, tool
from antiphon.model import ToolCall

pytestmark = pytest.mark.one_server


@tool(approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


CLERK = Agent(provider="scripted", model="any", name="clerk", tools=[pay])
BOSS = Agent(provider="scripted", model="any", name="boss", tools=[CLERK.as_tool(deltas=True)])


def answers(request):
    if any(one.tool_results for one in request.messages):
        return "Done."
    return ToolCall("c1", "pay", {}) if any(one.name == "pay" for one in request.tools) else [
        ToolCall(f"b{n}", "clerk", {"input": "Pay."}) for n in range(2)
    ]  # fmt: skip


async def approved(api, turn):
    """Approve what both children ask, at their parent."""
    asked = set()
    async with api.http.stream("GET", f"/turns/{turn}/events") as events:
        async for line in events.aiter_lines():
            if '"child_event"' in line and '"turn_suspended"' in line:
                calls = (await api.get(f"/turns/{turn}"))["calls"]
                for call in {one["call_id"] for one in calls} - asked:
                    asked.add(call)
                    await api.post(f"/turns/{turn}/calls/{call}/approve", {}, 204)
            if len(asked) == 2:
                return


async def test_the_calls_of_two_children_are_approved_at_their_parent(redis_url):
    async with calling(redis_url, answers, [BOSS]) as (api, _):
        turn = (await api.post("/sessions/s/turns", {"input": "Go.", "agent": "boss"}))["turn_id"]
        await approved(api, turn)
        result = await api.result(turn)
        assert result["response"]["text"] == "Done."
        assert (await api.get(f"/turns/{turn}")).get("calls", []) == []
        unknown = await api.post(f"/turns/{turn}/calls/{'c' * 42}:c1/approve", {}, 409)
        assert unknown["code"] == "not_suspended"


async def test_openai_s_client_reads_a_turn_that_has_children(redis_url):
    async with calling(redis_url, answers, [BOSS]) as (api, client):
        stream = await client.responses.create(model="boss", input="Go.", stream=True)
        kinds, said = [], []
        async for event in stream:
            kinds.append(event.type)
            if event.type == "response.created":
                turn = event.response.id.removeprefix("resp_")
                await approved(api, turn)
            if event.type == "response.output_text.delta":
                said.append(event.delta)
        assert (kinds[-1], "".join(said)) == ("response.completed", "Done."), "nothing of the children"
