"""Replays sessions, and computes from the bytes of their requests what each service reads from its prompt cache.

``python tools/prompt_caches.py`` prints the cached share of the input of a ten-turn session for each service. No
service is called: the providers build the requests, and the rules of the caches are the published ones.

- Anthropic reads the longest prefix that an earlier request has marked, at a mark of this request or up to 20 blocks
  before one. The order is tools, system prompt, messages; a different ``tool_choice`` or ``thinking`` invalidates the
  messages.
- OpenAI reads the longest prefix of any earlier request, in steps of 128 tokens, starting at 1,024.
- Other services of Chat Completions read it in steps of 64 tokens.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from antiphon import Agent, Session, tool
from antiphon.model import Message, Part, Reasoning, Text, ToolCall, Usage
from antiphon.window import Summary
from antiphon_worker.providers.anthropic.provider import anthropic_call
from antiphon_worker.providers.base import Increment, ModelRequest, StepResult
from antiphon_worker.providers.openai_chat.provider import chat_call
from antiphon_worker.providers.openai_responses.provider import responses_call

BYTES_PER_TOKEN = 4
LOOKBACK = 20
SMALLEST = 1_024
BUILD: dict[str, Callable[[ModelRequest], bytes]] = {
    "anthropic": lambda request: anthropic_call(request, "anthropic", max_tokens=8_192).body,
    "openai": lambda request: responses_call(request, "openai").body,
    "openai-chat": lambda request: (
        chat_call(request, "openai-chat", limit_name="max_tokens", include_usage=True).body
    ),
}
REASONING: dict[str, Callable[[int], dict[str, Any]]] = {
    "anthropic": lambda n: {"type": "thinking", "thinking": f"Thought {n}. " * 20, "signature": f"s{n}"},
    "openai": lambda n: {"type": "reasoning", "id": f"rs_{n}", "summary": [], "encrypted_content": "e" * 300},
    "openai-chat": lambda n: {"type": "reasoning_content"},
}
SYSTEM = "You are the help desk of a library. " * 170


class Recorder:
    """A provider that answers from a script, and keeps the bodies that the real one would send.

    It calls as many tools as the user's message asks for ("Look 3"), and then answers.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.bodies: list[dict[str, Any]] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[Increment]:
        self.bodies.append(json.loads(BUILD[self.name](request)))
        number, last = len(self.bodies), request.messages[-1]
        word, _, rest = last.text.partition(" ")
        summary = last.text.startswith("Write a summary")
        parts: list[Part] = [Reasoning(f"Thought {number}. " * 20, REASONING[self.name](number))]
        if word == "Look":
            calls = range(int(rest.split()[0]))
            parts += [ToolCall(f"call_{number}_{n}", "look", {"page": n, "of": 1.5}) for n in calls]
        else:
            parts.append(Text(f"Answer {number}. " * (20 if summary else 40)))
        reason = "tool_use" if word == "Look" else "end"
        yield StepResult(
            Message("assistant", parts, provider=self.name), Usage(1_000, 100), reason, None, request.model
        )

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


@tool
def look(page: int, of: float) -> str:
    """Read a page of the catalogue."""
    return f"Page {page}: " + "a book, " * 200


@tool
def lend(book: str, days: int = 14) -> str:
    """Lend a book."""
    return "lent"


def session_of(service: str, **options: Any) -> tuple[Recorder, Session]:
    """Return a session with a provider that keeps its requests."""
    recorder = Recorder(service)
    params: dict[str, Any] = {"reasoning": 2_000} if service == "anthropic" else {}
    agent = Agent(
        provider=recorder, model="m", system=SYSTEM, tools=[look, lend], parallel_tool_calls=False,
        max_tokens=20_000, **params, **options,
    )  # fmt: skip
    return recorder, agent.session()


def ten_turns(service: str) -> list[dict[str, Any]]:
    """Return the requests of a session of ten turns with tools and a summary."""
    recorder, session = session_of(service, window=Summary(turns=6))
    for turn, calls in enumerate([1, 0, 2, 1, 14, 0, 3, 1, 0, 2]):
        session.run(f"Look {calls} pages for {turn}" if calls else f"What about the book {turn}?")
    return recorder.bodies


def blocks_of(body: dict[str, Any]) -> list[str]:
    """Return what a service reads before it answers, in order, without cache marks."""
    found = [json.dumps(one) for one in body.get("tools", ())]
    system = body.get("system") or body.get("instructions") or []
    found += [json.dumps(one) for one in ([system] if isinstance(system, str) else system)]
    for message in body.get("messages") or body["input"]:
        content = message.get("content")
        if isinstance(content, list) and "system" in body:  # each block of a message is cached separately
            found += [json.dumps([message["role"], block]) for block in content]
        else:
            found.append(json.dumps(message))
    return [_unmarked(one) for one in found]


def _unmarked(text: str) -> str:
    return text.replace(', "cache_control": {"type": "ephemeral"}', "")


def tokens_of(blocks: Iterable[str]) -> int:
    """Estimate the tokens of blocks."""
    return sum(len(block) for block in blocks) // BYTES_PER_TOKEN


def common(one: list[str], other: list[str]) -> int:
    """Return how many leading blocks two requests share."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def cached_by_anthropic(bodies: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the cached tokens and all tokens of each request, for a cache of marked prefixes."""
    written: set[tuple[str, ...]] = set()
    found: list[tuple[int, int]] = []
    for body in bodies:
        blocks, marks = blocks_of(body), _marks(body)
        head = len(body.get("tools", ())) + len(body.get("system", ()))
        choice = json.dumps([body.get("tool_choice"), body.get("thinking"), body.get("output_config")])
        keys = [(*blocks[:n], choice if n > head else "") for n in range(len(blocks) + 1)]
        read = max(
            (
                n
                for mark in marks
                for n in range(mark, max(mark - LOOKBACK, 0), -1)
                if keys[n] in written and tokens_of(blocks[:n]) >= SMALLEST
            ),
            default=0,
        )
        found.append((tokens_of(blocks[:read]), tokens_of(blocks)))
        written.update(keys[mark] for mark in marks)
    return found


def _marks(body: dict[str, Any]) -> list[int]:
    """Return the numbers of blocks after which the request has a mark."""
    blocks = [*body.get("tools", ()), *body.get("system", ())]
    blocks += [block for message in body["messages"] for block in message["content"]]
    return [n for n, block in enumerate(blocks, 1) if "cache_control" in block]


def cached_by_prefix(bodies: list[dict[str, Any]], step: int, smallest: int) -> list[tuple[int, int]]:
    """Return the cached tokens and all tokens of each request, for a cache of all prefixes, in steps of tokens."""
    seen: list[list[str]] = []
    found: list[tuple[int, int]] = []
    for body in bodies:
        blocks = blocks_of(body)
        most = max((tokens_of(blocks[: common(blocks, one)]) for one in seen), default=0)
        cached = most // step * step if most >= smallest else 0
        found.append((cached, tokens_of(blocks)))
        seen.append(blocks)
    return found


CACHES: dict[str, Callable[[list[dict[str, Any]]], list[tuple[int, int]]]] = {
    "anthropic": cached_by_anthropic,
    "openai": lambda bodies: cached_by_prefix(bodies, 128, SMALLEST),
    "openai-chat": lambda bodies: cached_by_prefix(bodies, 64, 64),
}


def share(service: str, bodies: list[dict[str, Any]]) -> float:
    """Return the cached share of the input tokens of all requests."""
    cached = CACHES[service](bodies)
    return sum(read for read, _ in cached) / sum(whole for _, whole in cached)


if __name__ == "__main__":
    for service in CACHES:
        print(f"| `{service}` | {share(service, ten_turns(service)):.0%} |")
