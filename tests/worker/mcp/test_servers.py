"""Tools of MCP servers: called like other tools, and a server that fails harms nothing but its own calls."""

import asyncio
import sys
import threading

import pytest
from starlette.middleware.gzip import GZipMiddleware
from support.eventually import wait_until_async
from support.here import running_worker
from support.mcp_servers import Desk, program, raw_program

from antiphon import Agent, tool
from antiphon.client import AsyncClient
from antiphon.errors import InvalidTool, SettingsError, UsageError
from antiphon.mcp import MCP, tool_name
from antiphon.testing import script, tool_call
from antiphon_worker.app import App
from antiphon_worker.mcp import servers
from antiphon_worker.mcp.servers import close_servers

pytestmark = pytest.mark.one_server

ADD = """
@server.tool()
def add(a: int, b: int, context: str = "") -> int:
    "Add two numbers."
    return a + b
"""


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    """Servers of one test are not left to the next."""
    original = Agent.session_async

    yield
    assert Agent.session_async is original


async def answered(*said, mcp, tools=(), **options):
    """The calls of one turn of an agent in this process, and what the model was sent."""
    model = script(*said, "Done.")
    agent = Agent(model, "any", mcp=mcp, tools=tools, **options)
    try:
        response = await agent.session_async().run("Go.")
    finally:
        await close_servers()
    return response.tool_calls, model.requests


async def result_of(call, server, **options):
    [outcome], _ = await answered(call, mcp=[server], **options)
    return outcome


async def test_a_tool_of_a_program_is_called_like_any_other():
    server = program(ADD)
    [call], requests = await answered(
        tool_call("demo__add", a=1, b=2, context="is an argument"), mcp=[server]
    )
    assert (call.name, call.result, call.is_error) == ("demo__add", "3", False)
    [offered] = requests[0].tools
    assert (offered.name, offered.description) == ("demo__add", "Add two numbers.")
    assert offered.parameters["properties"]["a"]["type"] == "integer"


@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "handshake"])
async def test_a_tool_of_a_server_over_http_is_called_like_any_other(modern):
    async with Desk(modern=modern).running() as desk:
        call = await result_of(tool_call("desk__add", a=1, b=2), desk.declared())
    assert (call.result, call.is_error) == ("3", False)
    assert ("", "server/discover") in desk.seen
    assert (("", "tools/call") in desk.seen) is modern


async def test_arguments_that_do_not_fit_are_not_sent():
    async with Desk().running() as desk:
        call = await result_of(tool_call("desk__add", a="one", b=2), desk.declared())
    assert call.is_error
    assert "expected integer - at `$.a`" in call.result
    assert ("", "tools/call") not in desk.seen


async def test_nulls_that_the_schema_does_not_accept_are_left_out():
    server = program("""
    @server.tool()
    def greet(name: str, title: str = "", note: str | None = "none") -> str:
        "Greet."
        return f"{title}{name}, {note}"
    """)
    [call], _ = await answered(tool_call("demo__greet", name="Ada", title=None, note=None), mcp=[server])
    assert (call.result, call.is_error) == ("Ada, None", False)
    [call], _ = await answered(tool_call("demo__greet", name=None), mcp=[server])
    assert (call.is_error, "expected string - at `$.name`" in call.result) == (True, True), call.result


async def test_an_error_of_the_tool_is_an_error_result():
    server = raw_program("""
        for message in messages():
            if message["method"] == "tools/list":
                answer(message, {"tools": tools("fail")})
            else:
                answer(message, {"content": [{"type": "text", "text": "No such city."}], "isError": True})
    """)
    call = await result_of(tool_call("demo__fail"), server)
    assert (call.result, call.is_error) == ("No such city.", True)


async def test_only_the_declared_tools_are_offered():
    async with Desk().running() as desk:
        _, requests = await answered(mcp=[desk.declared(tools=["add"])])
    assert [one.name for one in requests[0].tools] == ["desk__add"]


async def test_the_progress_of_a_call_is_published():
    server = program("""
    from mcp.server.mcpserver import Context
    @server.tool()
    async def work(context: Context) -> str:
        await context.report_progress(1, 4, "one of four")
        return "done"
    """)
    agent = Agent(script(tool_call("demo__work"), "Done."), "any", mcp=[server])
    events = [event async for event in agent.session_async().stream("Go.")]
    await close_servers()
    [progress] = [event for event in events if event.type == "tool_progress"]
    assert (progress.text, progress.fraction) == ("one of four", 0.25)


async def test_two_servers_with_a_tool_of_the_same_name_and_none_shadows_another():
    @tool
    def add(a: int, b: int) -> str:
        """Add."""
        return "own"

    first, second = program(ADD, "one"), program(ADD.replace("a + b", "a * b"), "two")
    calls = [tool_call("add", a=3, b=4), tool_call("one__add", a=3, b=4), tool_call("two__add", a=3, b=4)]
    found, _ = await answered(*calls, mcp=[first, second], tools=[add])
    assert [call.result for call in found] == ["own", "7", "12"]


def test_no_own_tool_has_the_name_of_a_servers_tool():
    @tool(name="github__search")
    def search() -> str:
        """Search."""
        return ""

    github = MCP.http("https://mcp.example.com/", name="github")
    with pytest.raises(UsageError, match="a name of the MCP server 'github'"):
        Agent("scripted", "any", mcp=["github"], tools=[search])
    with pytest.raises(SettingsError, match="a name of the MCP server 'github'"):
        App(mcp=[github], tools=[search])


async def test_a_client_side_tool_of_a_turn_does_not_take_the_name_of_a_servers_tool(redis_url):
    async with Desk().running() as desk:
        agent = Agent(script("Done."), "any", mcp=[desk.declared()])
        with pytest.raises(InvalidTool, match="a name of the MCP server 'desk'"):
            await agent.session_async().run("Go.", caller_tools=[{"name": "desk__add"}])
        await close_servers()


@pytest.mark.parametrize(
    ("server", "tool"),
    [("a", "search/code"), ("a", "search.code"), ("a", "x" * 100), ("a", ""), ("a-b", "ä"), ("a", "\ud800")],
)
def test_each_name_becomes_one_that_models_can_use(server, tool):
    name = tool_name(server, tool)
    assert name.startswith(f"{server}__")
    assert len(name) <= 64
    assert name.replace("_", "").replace("-", "").isascii()


def test_names_that_models_cannot_use_stay_different():
    names = [tool_name("a", tool) for tool in ("b.c", "b/c", "b c", "b_c", "x" * 100, "x" * 101)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["", "a__b", "a_b", "x" * 25, "ä", 1, None])
def test_the_name_of_a_server_has_no_underscore(name):
    with pytest.raises(UsageError, match="name of an MCP server"):
        MCP.stdio("program", name=name)


@pytest.mark.parametrize("url", ["", "ftp://host/", "https://ada:secret@host/", "program", None])
def test_an_address_is_one_of_http_without_credentials(url):
    with pytest.raises(UsageError, match="url= of an MCP server"):
        MCP.http(url, name="a")


def test_what_is_shown_of_a_server_has_no_secrets():
    shown = repr(MCP.http("https://host/mcp?key=secret", name="a", headers={"X-Key": "secret"}))
    shown += repr(MCP.stdio("program --fast", name="b", env={"TOKEN": "secret"}))
    assert shown == "MCP.http('https://host/mcp', name='a')MCP.stdio('program --fast', name='b')"


def test_an_app_lacks_a_server_that_an_agent_names():
    with pytest.raises(SettingsError, match="has no MCP server 'github'"):
        App(agents=[Agent("scripted", "any", name="a", mcp=["github"])])


async def test_an_agent_in_this_process_needs_the_server_itself():
    agent = Agent(script("Done."), "any", mcp=["github"])
    with pytest.raises(UsageError, match=r"pass MCP\.http"):
        await agent.session_async().run("Go.")


def test_the_revision_is_that_of_the_declaration():
    def revision(**options):
        return Agent("scripted", "any", mcp=[MCP.http("https://host/", name="a", **options)]).revision

    assert revision() == revision(connect_timeout=5)
    assert (
        len({revision(), revision(tools=["b"]), revision(approval=True), revision(at_most_once=["b"])}) == 4
    )
    assert Agent("scripted", "any").revision != revision()


async def test_a_call_that_needs_approval_waits_and_runs_on_another_worker(redis_url):
    async with Desk().running() as desk:
        agent = Agent(script(tool_call("desk__add", a=1, b=2), "Done."), "any", name="a", mcp=["desk"])
        async with AsyncClient(redis_url) as client:
            turn = await client.submit("s", "Go.", agent="a")
            async with running_worker(redis_url, App([agent], mcp=[desk.declared(approval=["add"])])):

                async def suspended():
                    return (await turn.info()).status == "suspended"

                await wait_until_async(suspended, 20)
            assert ("", "tools/call") not in desk.seen
            [call] = (await turn.info()).calls
            await turn.approve(call.call_id, by="ada", arguments={"a": 20, "b": 1})
            async with running_worker(redis_url, App([agent], mcp=[desk.declared(approval=["add"])])):
                response = await turn.result()
                await close_servers()
    assert response.tool_calls[0].result.endswith("\n21")


async def test_an_approved_call_of_a_server_that_is_gone_is_an_error_result(redis_url):
    desk = Desk()
    async with AsyncClient(redis_url) as client:
        async with desk.running():
            model = script(tool_call("desk__add", a=1, b=2), "Done.")
            app = App([Agent(model, "any", name="a", mcp=[desk.declared(approval=True)])])
            turn = await client.submit("s", "Go.", agent="a")
            async with running_worker(redis_url, app):

                async def suspended():
                    return (await turn.info()).status == "suspended"

                await wait_until_async(suspended, 20)
                await close_servers()
        [call] = (await turn.info()).calls
        await turn.approve(call.call_id, by="ada")
        async with running_worker(redis_url, app):
            response = await turn.result()
            await close_servers()
    [outcome] = response.tool_calls
    assert outcome.is_error
    assert "desk is unavailable" in outcome.result


# What a server may do wrong


async def test_a_slow_tool_is_a_timeout_and_the_server_is_told():
    server = raw_program(
        """
        for message in messages():
            if message["method"] == "tools/list":
                answer(message, {"tools": tools("sleep", "last")})
            elif message["params"]["name"] == "last":
                answer(message, {"content": [{"type": "text", "text": str(cancelled)}]})
            else:
                cancelled = json.loads(sys.stdin.readline())["method"]
        """,
        timeout=0.3,
    )
    slow, last = (await answered(tool_call("demo__sleep"), tool_call("demo__last"), mcp=[server]))[0]
    assert (slow.result, slow.is_error) == ("The tool did not return within 0.3 s.", True)
    assert last.result == "notifications/cancelled"


@pytest.mark.parametrize(
    "server",
    [
        MCP.stdio("/no/such/program", name="demo"),
        MCP.stdio([sys.executable, "-c", "raise SystemExit(1)"], name="demo"),
        MCP.stdio([sys.executable, "-c", "print('Hello'); input()"], name="demo", connect_timeout=0.5),
        MCP.stdio([sys.executable, "-c", "import time; time.sleep(600)"], name="demo", connect_timeout=0.5),
        MCP.http("http://127.0.0.1:9/mcp", name="demo"),
    ],
    ids=["no program", "exits", "no protocol", "silent", "refused"],
)
async def test_the_model_is_told_of_a_server_that_cannot_be_used(server):
    async with Desk().running() as desk:
        [call], requests = await answered(tool_call("desk__add", a=1, b=2), mcp=[server, desk.declared()])
    assert call.result == "3"
    said = [message.text for message in requests[0].messages if message.role == "system"]
    assert said == ["These services cannot be used at the moment, and their tools are not available: demo."]


async def test_a_server_that_cannot_be_reached_is_left_alone_for_a_while(monkeypatch):
    made = []
    original = servers.stdio_transport
    monkeypatch.setattr(servers, "stdio_transport", lambda one: made.append(one) or original(one))
    agent = Agent(script("Done.", repeat=True), "any", mcp=[MCP.stdio("/no/such/program", name="demo")])
    for _ in range(3):
        await agent.session_async().run("Go.")
    assert len(made) == 1
    servers.server(agent.mcp[0])._until = 0.0  # the pause is over
    await agent.session_async().run("Go.")
    assert len(made) == 2
    await close_servers()


async def test_a_server_that_dies_in_a_call_is_started_again_for_the_next():
    server = program("""
    @server.tool()
    def die() -> str:
        os._exit(1)
    @server.tool()
    def pid() -> int:
        return os.getpid()
    """)
    calls, _ = await answered(
        tool_call("demo__pid"),
        tool_call("demo__pid"),
        tool_call("demo__die"),
        tool_call("demo__pid"),
        mcp=[server],
    )
    first, same, died, other = calls
    assert first.result == same.result != other.result
    assert died.is_error
    assert "connection" in died.result


HUGE = "x" * (5 * 1024 * 1024)


async def test_a_huge_answer_of_a_program_is_an_error_and_the_next_call_works():
    server = program("""
    @server.tool()
    def huge() -> str:
        return "x" * (5 * 1024 * 1024)
    @server.tool()
    def small() -> str:
        return "small"
    """)
    huge, small = (await answered(tool_call("demo__huge"), tool_call("demo__small"), mcp=[server]))[0]
    assert huge.is_error
    assert len(huge.result) < 1000
    assert small.result == "small"


@pytest.mark.parametrize("json_response", [True, False], ids=["json", "stream"])
async def test_a_huge_answer_over_http_is_an_error_and_its_neighbours_are_not(json_response):
    desk, entered, free = Desk(json=json_response), threading.Event(), threading.Event()

    @desk.server.tool()
    async def huge() -> str:
        await asyncio.to_thread(entered.wait, 60)
        return HUGE

    @desk.server.tool()
    async def slow() -> str:
        entered.set()
        await asyncio.to_thread(free.wait, 60)
        return "slow"

    async with desk.running():
        agent = Agent(
            script([tool_call("desk__huge"), tool_call("desk__slow")], "Done."), "any", mcp=[desk.declared()]
        )
        calls = {}
        async for event in agent.session_async().stream("Go."):
            if event.type == "tool_result":
                calls[event.name] = event
                free.set()
        await close_servers()
    assert calls["desk__huge"].is_error
    assert len(calls["desk__huge"].result) < 1000
    assert (calls["desk__slow"].result, calls["desk__slow"].is_error) == ("slow", False)


class Packing(Desk):
    """A server that compresses what is large: where the client accepts it, or always."""

    def __init__(self, *, always):
        super().__init__(json=True)
        self._always = always

        @self.server.tool()
        async def large() -> str:
            return HUGE if always else "x" * 10_000

    def _noting(self, app):
        packing = super()._noting(GZipMiddleware(app))

        async def asgi(scope, receive, send):
            if self._always and (b"mcp-method", b"tools/call") in scope.get("headers", ()):
                scope = scope | {"headers": [*scope["headers"], (b"accept-encoding", b"gzip")]}
                scope["headers"] = [one for one in scope["headers"] if one[1] != b"identity"]
            await packing(scope, receive, send)

        return asgi


async def test_answers_are_not_compressed():
    async with Packing(always=False).running() as desk:
        call = await result_of(tool_call("desk__large"), desk.declared())
    assert (len(call.result), call.is_error) == (10_000, False)


async def test_a_compressed_answer_is_an_error_and_the_next_call_works():
    async with Packing(always=True).running() as desk:
        agent = Agent(
            script(tool_call("desk__large"), tool_call("desk__add", a=1, b=2), "Done."), "any", mcp=[desk.declared()]
        )  # fmt: skip
        large, small = (await agent.session_async().run("Go.")).tool_calls
        await close_servers()
    assert (large.result, large.is_error) == ("desk: it sent a compressed answer", True)
    assert (small.result, small.is_error) == ("3", False)


async def test_tools_that_cannot_be_used_are_left_out(caplog):
    server = raw_program("""
        deep = {"type": "object"}
        for _ in range(40):
            deep = {"type": "object", "properties": {"a": deep}}
        listed = tools("good", "twice", "twice", "a/b")
        listed += tools("large", description="x" * 100_000)
        listed += tools("deep", inputSchema=deep)
        listed += tools("regex", outputSchema={"type": "object", "properties": {"a": {"pattern": "(a+)+$"}}})
        for message in messages():
            if message["method"] == "tools/list":
                answer(message, {"tools": listed})
            else:
                answer(message, {"content": [], "structuredContent": {"a": "a" * 40 + "!"}})
    """)
    [call], requests = await answered(tool_call("demo__regex"), mcp=[server])
    assert [one.name for one in requests[0].tools] == [
        "demo__good", "demo__twice", tool_name("demo", "a/b"), "demo__regex",
    ]  # fmt: skip
    assert "a" * 40 in call.result  # its schema was not tried, which would take for ever
    assert caplog.text.count("a tool of the MCP server demo is left out") == 3


async def test_a_list_without_an_end_is_cut():
    server = raw_program("""
        number = 0
        for message in messages():
            number += 1
            answer(message, {"tools": tools(*(f"t{number}x{i}" for i in range(50))), "nextCursor": str(number)})
    """)
    _, requests = await answered(mcp=[server])
    assert len(requests[0].tools) == 256


async def test_answers_that_do_not_follow_the_protocol_are_errors():
    server = raw_program("""
        for message in messages():
            if message["method"] == "tools/list":
                answer(message, {"tools": tools("a")})
            else:
                print("no JSON", flush=True)
                print("[]", flush=True)
                print(json.dumps({"jsonrpc": "2.0", "id": 12345, "result": {}}), flush=True)
                answer(message, {"content": "text"})
    """)
    call = await result_of(tool_call("demo__a"), server)
    assert call.is_error
    assert "does not follow the protocol" in call.result


async def test_the_list_is_asked_for_again_when_its_time_is_over_or_it_has_changed():
    server = raw_program("""
        listed = 0
        for message in messages():
            if message["method"] == "tools/list":
                listed += 1
                answer(message, {"tools": tools(f"t{listed}", "change")})
            else:
                print(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}), flush=True)
                answer(message, {"content": []})
    """)
    model = script("Done.", "Done.", tool_call("demo__change"), "Done.", "Done.", "Done.")
    agent = Agent(model, "any", mcp=[server])
    session = agent.session_async()
    for _ in range(4):
        await session.run("Go.")
    [connection] = servers.server(server)._connections.values()
    connection._until = 0.0
    await session.run("Go.")
    await close_servers()
    names = [request.tools[0].name for request in model.requests]
    assert names == ["demo__t1", "demo__t1", "demo__t1", "demo__t1", "demo__t2", "demo__t3"]


async def test_a_program_and_its_children_end_with_the_worker():
    server = program("""
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    @server.tool()
    def pids() -> str:
        return f"{os.getpid()} {child.pid}"
    """)
    agent = Agent(script(tool_call("demo__pids"), "Done."), "any", mcp=[server])
    response = await agent.session_async().run("Go.")
    pids = [int(pid) for pid in response.tool_calls[0].result.split()]
    assert all(map(_alive, pids))
    await close_servers()
    await wait_until_async(lambda: not any(map(_alive, pids)), 20)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
