"""Workers whose turns are answered in batches by a miniature service."""

from contextlib import asynccontextmanager

from support.here import running_worker
from support.services.batch_server import BatchServer, said_by

from antiphon import Agent, tool
from antiphon.client import AsyncClient
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Price
from antiphon_worker.providers.anthropic.provider import Anthropic
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

KINDS = ("openai", "openai-chat", "anthropic")
SOON = {"batch_seconds": 0.0, "batch_poll": 0.05}
PRICES = {"m": Price(input=2.0, output=10.0)}


def service(kind, url):
    if kind == "anthropic":
        return Anthropic(base_url=url, api_key="k")
    made = OpenAIChat if kind == "openai-chat" else OpenAIResponses
    return made(base_url=f"{url}/v1", api_key="k")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def adding(kind):
    """Return a model that first adds, then answers."""

    def answer(body):
        text = str(body)
        return said_by(kind, "It is 5.") if "add" in str(body.get("messages", body.get("input"))) else said_by(
            kind, "", ("add", {"a": 2, "b": 3})
        ) if "sum" in text else said_by(kind, "Hello.")  # fmt: skip

    return answer


@asynccontextmanager
async def working(redis_url, kind, answer=None, *, quick=True, **settings):
    async with BatchServer(answer or adding(kind), quick=quick) as server:
        app = App(
            [Agent(kind, "m", name="a", tools=[add])],
            providers={kind: service(kind, server.url)},
            prices=PRICES,
        )
        async with running_worker(redis_url, app, **{**SOON, **settings}), AsyncClient(redis_url) as client:
            yield client, server


def lose(redis):
    """Let workers lose the leases of all active sessions, as if they had died."""
    for session in redis.zrange("ant:active", 0, -1):
        redis.hset(f"ant:session:{session.decode()}", "lease", 0)
        redis.zadd("ant:active", {session: 0})
