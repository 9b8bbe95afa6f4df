"""A tool call carries only the credentials of the user it runs for (G24), and these stay in memory."""

import asyncio
import logging
import random
from itertools import count

import httpx2
import pytest
from mcp_types import BlobResourceContents, CallToolResult, EmbeddedResource
from mcp_types import Tool as Listed
from redis import Redis
from support.here import running_worker
from support.leaks import dumped
from support.mcp_servers import Desk, digest

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import ToolRaised
from antiphon.mcp import MCP, Requester
from antiphon.testing import script, tool_call
from antiphon_worker.app import App
from antiphon_worker.mcp import servers
from antiphon_worker.mcp.credentials import MASK, Credentials
from antiphon_worker.mcp.http import _OfOneUser
from antiphon_worker.mcp.servers import close_servers, server
from antiphon_worker.mcp.tools import content_of, usable_tools

pytestmark = pytest.mark.one_server

TOKEN = "token-Zx81-secret"


async def ignored(*progress):
    """Of a call."""


async def asked(declared, requester):
    """Call ``whoami`` for a user, and return whose credentials the server has received."""
    async with server(declared).use(requester) as connection:
        result = await connection.call("whoami", {"user": requester.user}, ignored)
        return content_of(result, connection.credentials)


@pytest.mark.parametrize("users", [60, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "handshake"])
async def test_many_users_of_one_server_never_use_anothers_credentials(modern, users):
    """Each token is new with every call, and each call is checked where it arrives."""
    numbers, given = count(), {}

    async def auth(requester):
        for _ in range(random.randrange(20)):  # answers come in another order than the calls
            await asyncio.sleep(0)
        token = f"{requester.tenant}-{requester.user}-{next(numbers)}"
        given.setdefault((requester.tenant, requester.user), []).append(f"Bearer {token}")
        return token

    async def calls(requester):
        for _ in range(2):
            user, received = (await asked(desk_of, requester)).split()
            own = {digest(header) for header in given[requester.tenant, requester.user]}
            assert user == requester.user
            assert received in own

    async with Desk(modern=modern, json=True).running() as desk:
        desk_of = desk.declared(auth=auth, connect_timeout=120)
        people = [Requester(f"t{n % 2}", f"user-{n // 2}", "desk") for n in range(users)]
        await asyncio.gather(*(calls(one) for one in people))
        await close_servers()
    arrived = [header for header, _ in desk.seen]
    assert len(arrived) >= 2 * users
    assert set(arrived) <= {header for headers in given.values() for header in headers}


def asks_once(request):
    """Call ``whoami`` first, and then end the turn."""
    return "Done." if request.messages[-1].role == "tool" else tool_call("desk__whoami", user="x")


async def test_users_of_turns_on_a_worker_have_their_own_credentials(redis_url):
    def auth(requester):
        return {"Authorization": f"Basic {requester.tenant}/{requester.user}"}

    async with Desk(json=True).running() as desk:
        agent = Agent(script(asks_once, repeat=True), "any", name="a", mcp=["desk"])

        async def turn(n):
            tenant, user = f"t{n % 3}", f"u{n % 5}"
            submitted = await client.submit(f"s{n}", "Go.", agent="a", tenant=tenant, user=user)
            [call] = (await submitted.result()).tool_calls
            assert call.result == f"x {digest(f'Basic {tenant}/{user}')}"

        async with AsyncClient(redis_url) as client:
            app = App([agent], mcp=[desk.declared(auth=auth)])
            async with running_worker(redis_url, app):
                await asyncio.gather(*map(turn, range(15)))
                await close_servers()


async def test_credentials_reach_neither_redis_nor_logs_nor_events(redis_url, caplog):
    """Also where the server repeats them in its results."""
    caplog.set_level(logging.DEBUG)
    async with Desk(json=True).running() as desk:
        agent = Agent(
            script(tool_call("desk__repeat"), "Done."),
            "any",
            name="a",
            mcp=[desk.declared(auth=lambda _: TOKEN)],
        )
        async with AsyncClient(redis_url) as client, running_worker(redis_url, App([agent])):
            session = client.session("s", agent="a")
            events = [event async for event in session.stream("Go.", user="ada")]
            with Redis.from_url(redis_url) as redis:
                stored = dumped(redis)
            await close_servers()
    assert ("Bearer " + TOKEN, "tools/call") in desk.seen
    [result] = [event.result for event in events if event.type == "tool_result"]
    assert result == "You sent [credentials]."
    assert TOKEN not in caplog.text
    assert all(TOKEN not in str(event) for event in events)
    assert stored
    assert all(TOKEN.encode() not in key + str(value).encode() for key, value in stored.items())


def desk_with(*headers):
    """A declared server, and the credentials of a user who has sent these headers, one set after the other."""
    desk = MCP.http("https://desk.example/mcp", name="desk")
    credentials = Credentials(desk)
    for one in headers:
        credentials.replace(one)
    return desk, credentials


def test_each_of_several_headers_is_removed_from_what_the_server_says():
    """Also those of a call that others have followed."""
    sets = [{f"X-{part}": f"{part}-secret-{n}" for part in "abcdef"} for n in range(3)]
    _, credentials = desk_with(*sets)
    secrets = [secret for one in sets for secret in one.values()]
    assert credentials.out_of(" ".join(secrets)) == " ".join([MASK] * len(secrets))


@pytest.mark.parametrize(
    "declared",
    [
        MCP.http(
            "https://desk.example/mcp", name="desk",
            headers={"Authorization": f"Bearer {TOKEN}", "X-Version": "2026-07"},
        ),
        MCP.http(f"https://desk.example/mcp?api_key={TOKEN}&version=2026-07", name="desk"),
        MCP.stdio("desk", name="desk", env={"DESK_API_TOKEN": TOKEN, "VERSION": "2026-07"}),
    ],
    ids=["headers", "url", "env"],
)  # fmt: skip
def test_credentials_for_all_users_are_removed_from_what_the_server_says(declared):
    """And nothing else that is declared beside them."""
    credentials = Credentials(declared)
    assert credentials.out_of(f"{TOKEN} for 2026-07") == f"{MASK} for 2026-07"
    credentials.replace({"X-Key": "own-key"})
    assert credentials.out_of(f"{TOKEN} or own-key") == f"{MASK} or {MASK}"


def test_credentials_that_the_server_repeats_in_its_list_reach_no_model():
    desk, credentials = desk_with({"X-Key": 'quo"ted-key'})
    schema = {"type": "object", "properties": {"a": {"description": 'Not quo"ted-key.', "type": "string"}}}
    listed = [
        Listed(name="add", description='Uses quo"ted-key.', input_schema=schema),
        Listed(name='quo"ted-key', input_schema=schema),
    ]
    [tool] = usable_tools(desk, listed, credentials)
    assert tool.description == f"Uses {MASK}."
    assert tool.parameters["properties"]["a"]["description"] == f"Not {MASK}."


def test_credentials_that_the_server_repeats_beside_texts_reach_no_model():
    _, credentials = desk_with({"X-Key": 'quo"ted-key'})
    structured = CallToolResult(content=[], structured_content={"key": ['quo"ted-key']})
    assert content_of(structured, credentials) == f'{{"key":["{MASK}"]}}'
    blob = BlobResourceContents(uri='file:///quo"ted-key', blob="AAAA", mime_type="text/plain")
    [file] = content_of(
        CallToolResult(content=[EmbeddedResource(type="resource", resource=blob)]), credentials
    )
    assert file.name == MASK


@pytest.mark.parametrize(
    "url",
    ["https://desk.example:444/mcp", "http://desk.example/mcp", "https://elsewhere.example/mcp"],
    ids=["port", "scheme", "host"],
)
async def test_credentials_are_sent_to_no_other_origin(url):
    desk, credentials = desk_with({"X-Key": TOKEN})
    sent = []

    async def answer(request):
        sent.append(request.headers.get("X-Key"))
        return httpx2.Response(200)

    transport = _OfOneUser(desk, httpx2.MockTransport(answer), credentials)
    for address in (desk.url, url):
        await transport.handle_async_request(httpx2.Request("POST", address))
    assert sent == [TOKEN, None]


def fails(requester):
    raise RuntimeError(f"cannot renew {TOKEN}")


def asks(requester):
    raise ToolRaised("Connect your account at https://example.com/connect first.")


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        (fails, "The credentials for desk could not be resolved (RuntimeError)."),
        (asks, "Connect your account at https://example.com/connect first."),
        (lambda _: 5, "The credentials for desk could not be resolved."),
        (lambda _: {"X-Key": "a\nb"}, "The credentials for desk could not be resolved."),
    ],
    ids=["raises", "raises for the model", "no token", "no header"],
)
async def test_credentials_that_cannot_be_resolved_are_an_error_of_the_call(auth, said, caplog):
    caplog.set_level(logging.DEBUG)
    async with Desk().running() as desk:
        with pytest.raises(ToolRaised) as caught:
            await asked(desk.declared(auth=auth), Requester(None, "ada", "desk"))
        await close_servers()
    assert caught.value.message == said
    assert not desk.seen
    assert TOKEN not in caplog.text


async def test_credentials_of_one_user_that_are_refused_do_not_affect_another():
    async with Desk().running() as desk:
        desk.refused = "Bearer ada"
        declared = desk.declared(auth=lambda requester: requester.user)
        with pytest.raises(ToolRaised, match=r"refused the credentials \(401\)"):
            await asked(declared, Requester(None, "ada", "desk"))
        assert await asked(declared, Requester(None, "bob", "desk")) == f"bob {digest('Bearer bob')}"
        await close_servers()


async def test_connections_that_are_not_used_are_closed(monkeypatch):
    monkeypatch.setattr(servers, "MOST_IDLE", 2)
    async with Desk().running() as desk:
        declared = desk.declared(auth=lambda requester: requester.user)
        for user in ("ada", "bob", "cid", "ada"):
            await asked(declared, Requester(None, user, "desk"))
        known = server(declared)._connections
        assert [user for _, user in known] == ["cid", "ada"]
        monkeypatch.setattr(servers, "IDLE_SECONDS", 0.0)
        server(declared)._tidy()
        assert not known
        await close_servers()
