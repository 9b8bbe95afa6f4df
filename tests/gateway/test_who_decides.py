"""Through every protocol of a gateway, a decision has the authenticated caller as ``by``, whatever a request claims."""

import pytest
from support.gateway import keys
from support.openai_clients import calling

from antiphon import Agent, tool
from antiphon.model import CallerTool, ToolCall
from antiphon_gateway import Access

pytestmark = pytest.mark.one_server
CLAIMED = {"by": "the boss", "on_behalf_of": "the boss", "user": "the boss", "author": "the boss"}


@tool(approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


CLERK = Agent(provider="scripted", model="any", name="clerk", tools=[pay])
GUIDE = Agent(provider="scripted", model="any", name="guide", caller_tools=[CallerTool("look")])


def answers(request):
    called = "look" if any(one.name == "look" for one in request.tools) else "pay"
    return "Done." if any(one.tool_results for one in request.messages) else [ToolCall("c1", called, {})]


async def http(api, turn, kind):
    body = {"result": "a tree"} if kind == "result" else {}
    await api.post(f"/turns/{turn}/calls/c1/{kind}", {**body, "by": "the boss"}, 204)


async def ai_sdk(api, turn, kind):
    state = {
        "approve": {"state": "approval-responded", "approval": {"id": "c1", "approved": True, **CLAIMED}},
        "reject": {"state": "approval-responded", "approval": {"id": "c1", "approved": False, **CLAIMED}},
        "result": {"state": "output-available", "output": "a tree"},
    }[kind]
    part = {"type": "dynamic-tool", "toolName": "any", "toolCallId": "c1", "input": {}, **state, **CLAIMED}
    message = {"id": turn, "role": "assistant", "parts": [part], "metadata": CLAIMED}
    answer = await api.http.post("/chat", json={"id": "s", "messages": [message], **CLAIMED})
    assert answer.status_code == 200, answer.text


async def ag_ui(api, turn, kind):
    resumed = {
        "interruptId": "c1",
        "status": "resolved",
        "payload": {"approved": kind == "approve", **CLAIMED},
    }
    told = {"id": "m", "role": "tool", "toolCallId": "c1", "content": "a tree", **CLAIMED}
    answer = await api.http.post(
        "/ag-ui/any",
        json={
            "threadId": "s", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": CLAIMED,
            **({"messages": [told]} if kind == "result" else {"messages": [], "resume": [resumed]}),
        },
    )  # fmt: skip
    assert answer.status_code == 200, answer.text


async def responses(api, turn, kind):
    assert kind == "result"
    output = [{"type": "function_call_output", "call_id": "c1", "output": "a tree"}]
    body = {"input": output, "previous_response_id": f"resp_{turn}", "user": "the boss", "metadata": CLAIMED}
    refused = await api.http.post("/v1/responses", json=body)
    assert refused.status_code == 400, "what waits cannot be changed"
    await api.post("/v1/responses", {"input": output, "previous_response_id": f"resp_{turn}"}, 200)


WAYS = [(way, kind) for way in (http, ai_sdk, ag_ui) for kind in ("approve", "reject", "result")]


@pytest.mark.parametrize(
    ("decide", "kind"), [*WAYS, (responses, "result")], ids=lambda one: getattr(one, "__name__", one)
)
async def test_a_decision_is_the_callers(redis_url, decide, kind):
    known, secrets = keys(shop={"tenant": "acme"})
    options = {"key": secrets["shop"], "access": Access(known)}
    async with calling(redis_url, answers, [CLERK, GUIDE], **options) as (api, _):
        asked = {"input": "Go.", "agent": "guide" if kind == "result" else "clerk"}
        turn = (await api.post("/sessions/s/turns", asked))["turn_id"]
        async with api.http.stream("GET", f"/turns/{turn}/events") as events:
            lines = events.aiter_lines()
            while '"turn_suspended"' not in await anext(lines):
                pass
        await decide(api, turn, kind)
        await api.result(turn)
        made = [
            one
            for message in (await api.get("/sessions/s/messages"))["messages"]
            for one in message.get("decisions", ())
        ]
        assert [(one["kind"], one["by"]) for one in made] == [(kind, "key shop")]
        assert made[0].get("on_behalf_of") == ("the boss" if decide is http else None)
