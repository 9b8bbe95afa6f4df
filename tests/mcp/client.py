"""The client that the conformance suite tests: an agent on a worker, which calls each tool of the suite's server.

``MCP_CONFORMANCE_CONTEXT`` may name the calls. Questions are answered with the defaults of their schemas.
"""

import asyncio
import json
import os
import sys

from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.mcp import MCP
from antiphon.model import ToolCall
from antiphon.testing import script
from antiphon_worker.app import App
from antiphon_worker.mcp.servers import close_servers

VALUES = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
CALLS = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).get("toolCalls")


def value_of(schema):
    return schema.get("default", schema.get("enum", [VALUES.get(schema.get("type"), "text")])[0])


def object_of(schema):
    return {name: value_of(one) for name, one in schema.get("properties", {}).items()}


def model(request):
    """The answers of the model: first a call of each tool, then a word."""
    if any(message.tool_results for message in request.messages):
        return "Done."
    offered = {one.name.partition("__")[2]: one for one in request.tools}
    wanted = CALLS or [
        {"name": name, "arguments": object_of(one.parameters)} for name, one in offered.items()
    ]
    for one in wanted:
        if (
            "schema" in one["arguments"]
        ):  # a tool that returns the schema of the other one, as the model knows it
            one["arguments"]["schema"] = next(iter(offered.values())).parameters
    calls = [
        ToolCall(f"c{number}", offered[one["name"]].name, one["arguments"])
        for number, one in enumerate(wanted)
        if one["name"] in offered
    ]
    return calls or "There are no tools."


async def answer(client, turn):
    """Answer the questions that the turn waits for."""
    for wait in (await turn.info()).waits:
        if wait.about:
            answers = {
                name: {"action": "accept", "content": object_of(one.get("schema", {}))}
                for name, one in wait.about["questions"].items()
            }
            await client.send_event(wait.event, answers)


async def main(redis_url, url):
    server = MCP.http(url, name="suite")
    app = App(agents=[Agent(script(model, repeat=True), "any", name="tester", mcp=[server])])
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Go.", agent="tester")
        async with turn.stream() as events:
            async for event in events:
                if event.type in ("turn_sleeping", "turn_suspended"):
                    await answer(client, turn)
        for call in (await turn.result()).tool_calls:
            print(call.name, call.arguments, "error:" if call.is_error else "", call.result)
        await close_servers()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[-2:]))
