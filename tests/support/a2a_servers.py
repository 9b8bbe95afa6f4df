"""An agent of another system for tests, served by the official server of A2A for Python."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from support.eventually import wait_until_async
from support.mcp_servers import without_watcher

from antiphon.a2a import RemoteAgent


def digest(token: str) -> str:
    """Return what the agent returns instead of a token, which would be removed from the result."""
    return hashlib.sha256(token.encode()).hexdigest()


class Colleague(AgentExecutor):
    """An agent that does what the first word of a message requests. ``begun`` has the message ids of begun requests.

    ``hold`` waits until ``let_go`` is set.
    """

    def __init__(self, *, streaming: bool = True) -> None:
        self.streaming = streaming
        self.begun: list[str] = []
        self.contexts: list[str] = []
        self.answers: list[str] = []
        self.cancelled: list[str] = []
        self.let_go = asyncio.Event()
        self.elsewhere = ""
        self.url = ""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        text = context.get_user_input()
        if context.current_task is not None:
            self.answers.append(text)
            await self._answer(updater, f"You chose {text}.")
            return
        self.begun.append(context.message.message_id)
        self.contexts.append(context.message.context_id)
        word = text.partition(" ")[0]
        if word == "message":
            await event_queue.enqueue_event(updater.new_agent_message([pb.Part(text="A message.")]))
            return
        task = pb.Task(id=updater.task_id, context_id=updater.context_id, history=[context.message])
        task.status.state = pb.TASK_STATE_SUBMITTED
        await event_queue.enqueue_event(task)
        await updater.start_work(updater.new_agent_message([pb.Part(text="I begin.")]))
        match word:
            case "hold":
                await self.let_go.wait()
                await self._answer(updater, "Held.")
            case "ask":
                await updater.requires_input(updater.new_agent_message([pb.Part(text="Which colour?")]))
            case "fail":
                await updater.failed(updater.new_agent_message([pb.Part(text="It broke.")]))
            case "reject":
                await updater.reject()
            case "whoami":
                headers = context.call_context.state["headers"] if context.call_context else {}
                await self._answer(updater, digest(headers.get("authorization", "")))
            case "repeat":
                headers = context.call_context.state["headers"] if context.call_context else {}
                await self._answer(updater, f"You sent {headers.get('authorization', '')}.")
            case "huge":
                await self._answer(updater, "x" * 5_000_000)
            case "files":
                await updater.add_artifact([
                    pb.Part(text="See: "), pb.Part(raw=b"PNG", media_type="image/png"),
                    pb.Part(data=ParseDict({"a": 1}, Value())), pb.Part(url="https://example.com/a", filename="a"),
                ])  # fmt: skip
                await updater.complete()
            case _:
                await self._answer(updater, f"I was told: {text}")

    async def _answer(self, updater: TaskUpdater, text: str) -> None:
        await updater.add_artifact([pb.Part(text=text)])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.cancelled.append(context.task_id or "")
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()

    def declared(self, **options: Any) -> RemoteAgent:
        """Return the agent as a tool."""
        return RemoteAgent(self.url, name="colleague", **options)

    def card(self) -> pb.AgentCard:
        """Return the card of the agent."""
        return pb.AgentCard(
            name="colleague", description="A colleague.", version="1", default_input_modes=["text/plain"],
            default_output_modes=["text/plain"], capabilities=pb.AgentCapabilities(streaming=self.streaming),
            skills=[pb.AgentSkill(id="a", name="a", description="a", tags=["a"])],
            supported_interfaces=[
                pb.AgentInterface(url=self.elsewhere or self.url, protocol_binding=one, protocol_version="1.0")
                for one in ("JSONRPC", "HTTP+JSON")
            ],
        )  # fmt: skip

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Colleague"]:
        """Serve the agent."""
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        handler = DefaultRequestHandler(self, InMemoryTaskStore(), self.card())

        async def fail(request: Any) -> Response:
            return Response(status_code=503)

        routes = [
            *create_agent_card_routes(self.card()), *create_jsonrpc_routes(handler, "/"), *create_rest_routes(handler),
            Route("/down", fail),
        ]  # fmt: skip
        config = uvicorn.Config(
            Starlette(routes=routes), log_level="warning", timeout_graceful_shutdown=1, log_config=None
        )
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await wait_until_async(lambda: server.started or running.done())
            yield self
        finally:
            self.let_go.set()
            server.should_exit = True
            await running
            listening.close()
            await handler.aclose()
            await without_watcher()
