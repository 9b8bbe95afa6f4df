"""The App of a worker process whose agent gives its task to the agent at ``COLLEAGUE``."""

import os
from collections.abc import AsyncIterator

from antiphon import Agent
from antiphon.a2a import RemoteAgent
from antiphon.model import Message, Part, Text, ToolCall, Usage
from antiphon_worker.app import App
from antiphon_worker.providers.base import Increment, ModelRequest, StepResult


class Boss:
    """A model that calls the colleague once, whichever process it answers in."""

    name = "boss"

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Increment]:
        done = any(message.role == "tool" for message in request.messages)
        part: Part = Text("Done.") if done else ToolCall("call_1", "colleague", {"input": "hold"})
        reason = "end" if done else "tool_use"
        yield StepResult(Message("assistant", [part]), Usage(1, 1), reason, reason, request.model)


colleague = RemoteAgent(os.environ.get("COLLEAGUE", "http://127.0.0.1:9"), name="colleague")
app = App([Agent("boss", "any", name="a", tools=[colleague])], providers={"boss": Boss()})
