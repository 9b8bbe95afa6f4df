"""The official client of A2A for Python, as other agents call a gateway."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from a2a.client import Client, ClientConfig, create_client
from a2a.types import a2a_pb2 as pb

BINDINGS = ["JSONRPC", "HTTP+JSON"]


def said(text: str = "", **more: Any) -> pb.SendMessageRequest:
    """Return a message of the user; keywords are fields of the message, or ``configuration``."""
    configuration = more.pop("configuration", None)
    parts = more.pop("parts", None) or [pb.Part(text=text)]
    message = pb.Message(**{"message_id": uuid.uuid4().hex, "role": pb.ROLE_USER, "parts": parts, **more})
    return pb.SendMessageRequest(message=message, configuration=configuration)


@asynccontextmanager
async def a2a_client(
    url: str,
    *,
    key: str | None = None,
    binding: str = "JSONRPC",
    streaming: bool = False,
    timeout: float = 30,
) -> AsyncGenerator[Client]:
    """Open a client of the agent whose card is under this URL."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=False) as http:
        config = ClientConfig(
            httpx_client=http,
            streaming=streaming,
            supported_protocol_bindings=[binding],
            use_client_preference=True,
        )
        async with await create_client(url, client_config=config) as client:
            yield client


async def sent(client: Client, request: pb.SendMessageRequest) -> pb.Task:
    """Send a message without streaming, and return its task."""
    found = [one async for one in client.send_message(request)]
    assert len(found) == 1, found
    assert found[0].HasField("task")
    return found[0].task


def answer(task: pb.Task) -> str:
    """Return the text of a task's answer."""
    return "".join(part.text for one in task.artifacts for part in one.parts)


class Follower:
    """What a client knows about a task from its updates."""

    def __init__(self) -> None:
        self.task: pb.Task | None = None
        self.states: list[str] = []
        self.text = ""
        self.pieces = 0

    def take(self, update: pb.StreamResponse) -> None:
        """Process an update."""
        match update.WhichOneof("payload"):
            case "task":
                assert self.task is None, "a second task"
                self.task = update.task
                self.text = answer(update.task)
                self.states.append(pb.TaskState.Name(update.task.status.state))
            case "artifact_update":
                found = "".join(part.text for part in update.artifact_update.artifact.parts)
                self.pieces += 1
                self.text = self.text + found if update.artifact_update.append else found
            case "status_update":
                self.states.append(pb.TaskState.Name(update.status_update.status.state))
            case kind:
                raise AssertionError(kind)


async def followed(updates: Any) -> Follower:
    """Follow a task to the end of its stream."""
    found = Follower()
    async for one in updates:
        found.take(one)
    return found
