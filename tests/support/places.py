"""The fixture ``place``: runs the turns of an agent in this process, or on a worker."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon.client import AsyncClient
from antiphon.session.runtime import local_runtime
from antiphon_worker.app import App


@asynccontextmanager
async def local(agent, redis_url, app=None, **options):
    yield partial(agent.session_async, **options)
    local_runtime().forget()


@asynccontextmanager
async def on_workers(agent, redis_url, app=None, **options):
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app or App(agents=[agent])):
        yield partial(client.session, agent=agent.name, **options)


@pytest.fixture(params=[local, on_workers], ids=["local", "redis"])
def place(request, redis_url):
    """A context manager for the sessions of an agent: ``async with place(agent) as session_of``."""
    return lambda agent, **options: request.param(agent, redis_url, **options)


async def until(turn, status):
    async def reached():
        return (await turn.info()).status == status

    await wait_until_async(reached, 20, f"it is {status}")
