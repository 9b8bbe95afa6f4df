"""What Redis stores of an idle session and of a suspended turn: no more bytes, and no more keys, than before.

Names of fields and values count. The overhead of Redis does not, as it depends on the server (`make bench ARGS=idle`),
nor do deltas, whose number depends on the time.
"""

import pytest
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon.client import AsyncClient
from antiphon.input.request import WAITS, AgentSpec
from antiphon.model import CallerTool

ANSWERS = AgentSpec(provider="scripted", model="any", params={"script": ["hi length:40 " * 32]})
ASKS = AgentSpec(
    provider="scripted", model="any", caller_tools=[CallerTool("ask")], version=WAITS,
    params={"script": [[{"type": "tool_call", "call_id": "c", "name": "ask", "arguments": {"amount": 30}}]]},
)  # fmt: skip
OF_AN_IDLE_SESSION = {
    "rq:job": 352, "ant:turn": 2201, "ant:events": 1970, "ant:history": 793, "ant:session": 635, "ant:turns": 32,
}  # fmt: skip
OF_A_SUSPENDED_TURN = {
    "rq:job": 309, "ant:turn": 903, "ant:events": 1076, "ant:journal": 373, "ant:session": 332, "ant:inbox": 32,
    "ant:turns": 32,
}  # fmt: skip


async def sizes(redis, session, turn, worker):
    """The bytes of each kind of key that names the session or the turn; the name of the worker counts as one."""
    found = {}
    for key in await redis.keys("*"):
        name = key.decode()
        if session in name or turn in name:
            kind = name.rpartition(":")[0]
            found[kind] = len(b"".join([part async for part in _parts(redis, key)]).replace(worker, b"w"))
    return found


async def _parts(redis, key):
    match await redis.type(key):
        case b"hash":
            for field, value in (await redis.hgetall(key)).items():
                yield field + value
        case b"list":
            for value in await redis.lrange(key, 0, -1):
                yield value
        case b"stream":
            for _, fields in await redis.xrange(key):
                if b'_delta","' not in fields[b"e"]:
                    yield fields[b"e"]


@pytest.mark.parametrize(
    ("agent", "status", "most"),
    [(ANSWERS, "finished", OF_AN_IDLE_SESSION), (ASKS, "suspended", OF_A_SUSPENDED_TURN)],
    ids=["idle session", "suspended turn"],
)
async def test_no_more_is_stored_than_before(redis_url, agent, status, most):
    async with running_worker(redis_url) as worker, AsyncClient(redis_url) as client:
        turn = await client.submit("idle-session", "hi length:40", agent=agent)

        async def over():
            return (await turn.status()) == status

        await wait_until_async(over, 60, f"it is {status}")
        (cell,) = client.connections.cells
        found = await sizes(cell.redis, "idle-session", turn.id, worker.name.encode())
        if status == "suspended":
            await turn.cancel()
    assert found.keys() == most.keys()
    assert {kind: size for kind, size in found.items() if size > most[kind]} == {}
