"""Apps with revisions of one agent, which answers with its revision's name."""

from contextlib import asynccontextmanager

from support.eventually import wait_until_async
from support.here import running_worker

from antiphon import Agent, tool
from antiphon.client import AsyncClient
from antiphon.testing import script, tool_call
from antiphon_worker.app import App

MODULE = """
import asyncio

from antiphon import Agent, tool
from antiphon.model.revisions import Rollout
from antiphon.testing import script, tool_call
from antiphon_worker import App

NAME = "{name}"


@tool
async def work() -> str:
    "Work."
    await asyncio.sleep(0.15)
    return NAME


def step(request):
    last = max(i for i, one in enumerate(request.messages) if one.role == "user")
    made = sum(one.role == "tool" for one in request.messages[last:])
    return [NAME, tool_call("work")] if made < {steps} else NAME


support = Agent(script(step, repeat=True), "any", name="support", system=NAME, tools=[work], rollout=Rollout(timeout=3))
app = App(agents=[support])
"""
"""The module of such an App for a worker process, whose turns take several steps with a slow tool."""


@tool(approval=True)
def refund() -> str:
    """Refund."""
    return "done"


def app(answer: str, *, rollout=None, asks=True, **options) -> App:
    """Return an App whose agent answers with its revision."""
    said = [tool_call("refund"), answer] if asks else [answer]
    agent = Agent(script(*said, repeat=True), "any", name="support", system=answer,
                  tools=[refund], rollout=rollout, **options)  # fmt: skip
    return App(agents=[agent])


def plain(answer: str, rollout=None) -> App:
    lines = script(answer, repeat=True)
    return App(agents=[Agent(lines, "any", name="support", system=answer, rollout=rollout)])


def revision(one: App) -> str:
    return one.revisions["support"].id


@asynccontextmanager
async def client_of(url):
    async with AsyncClient(url) as client:
        yield client


async def suspended(client, url, one: App, session="s"):
    """Return a turn that has begun on this App, and waits for an approval."""
    async with running_worker(url, one):
        turn = await client.submit(session, "Refund it.", agent="support")
        await wait_until_async(lambda: status_is(turn, "suspended"), 30, "it is suspended")
    return turn


async def status_is(turn, status) -> bool:
    return (await turn.info()).status == status


async def approve(turn) -> None:
    (call,) = (await turn.info()).calls
    await turn.approve(call.call_id)
