"""Exchanges recorded from the real services, replayed: each reads as the SDKs read it, however it is cut."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.services.conversation import hear, reasoning, request, result, serve, texts

from antiphon.errors import ProviderError, ProviderStreamBroken
from antiphon.model import Item, Refusal, Usage
from antiphon_worker.providers.base import ReasoningPiece

pytestmark = pytest.mark.main_path

SHARED = Path(__file__).parents[4] / "shared"
RECORDED = SHARED / "recorded"
KIND = {"chat.completions": "openai-chat", "messages": "anthropic", "responses": "openai"}
MODES = [("fixed", 0), ("fixed", 1), ("random", 9), ("evil", 0), ("evil", 5), ("event", 0)]


def cases() -> list[Any]:
    found = sorted((RECORDED / "expected").glob("*.json"))
    if not found:
        return [
            pytest.param(None, marks=pytest.mark.skip(reason="the folder ../shared/recorded is not here"))
        ]
    return [pytest.param(path, id=path.stem) for path in found]


@pytest.fixture(scope="module")
def replay() -> Iterator[str]:
    if not RECORDED.is_dir():
        pytest.skip("the folder ../shared/recorded is not here")
    command = [sys.executable, str(SHARED / "tools" / "replay.py"), "--cases", str(RECORDED), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["base_url"]
        server.kill()


def provider(
    expected: dict[str, Any], url: str, case: str, mode: str = "fixed", size: int = 0, **options: Any
) -> Any:
    headers = {"x-case": case, "x-chunk-mode": mode, "x-chunk": str(size)}
    return serve(KIND[expected["endpoint"]], url, headers=headers, **options)


def usage_of(expected: dict[str, Any]) -> Usage:
    """The SDK's counts by our names."""
    used = expected["result"]["usage"] or {}

    def detail(kind: str, name: str) -> int:
        return (used.get(f"{kind}_tokens_details") or {}).get(name) or 0

    if expected["endpoint"] == "chat.completions":
        counts = used.get("prompt_tokens", 0), used.get("completion_tokens", 0)
        details = detail("prompt", "cached_tokens"), detail("prompt", "cache_write_tokens")
        return Usage(*counts, *details, detail("completion", "reasoning_tokens"), used.get("cost"))
    if expected["endpoint"] == "messages":
        read, written = used.get("cache_read_input_tokens") or 0, used.get("cache_creation_input_tokens") or 0
        thought = detail("output", "thinking_tokens")
        return Usage(used["input_tokens"] + read + written, used["output_tokens"], read, written, thought)
    cached = detail("input", "cached_tokens"), detail("input", "cache_write_tokens")
    return Usage(used["input_tokens"], used["output_tokens"], *cached, detail("output", "reasoning_tokens"))


def tool_calls_of(said: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    calls = [(call["name"], call["arguments_json"]) for call in said["tool_calls"]]
    legacy = said.get("function_call")
    return calls + ([(legacy["name"], json.loads(legacy["arguments"]))] if legacy else [])


@pytest.mark.parametrize("path", cases())
async def test_a_recorded_exchange_reads_as_the_sdk_reads_it(path, replay):
    expected = json.loads(path.read_text())
    for mode, size in MODES:
        service = provider(expected, replay, expected["id"], mode, size)
        try:
            if not expected["ok"]:
                with pytest.raises(ProviderError) as error:
                    await hear(service)
                assert error.value.status == expected["status"]
                assert error.value.request_id == expected["error"]["request_id"]
                assert not error.value.retryable
            else:
                compare(expected, await hear(service))
        finally:
            await service.aclose()


def compare(expected: dict[str, Any], heard: list[Any]) -> None:
    said = (expected["result"].get("choices") or [expected["result"]])[0]
    answer = result(heard)
    message = answer.message
    assert message.text == (said["text"] or "") == "".join(texts(heard))
    assert reasoning(message) == "".join(said["thinking"]) == "".join(texts(heard, ReasoningPiece))
    assert [(call.name, call.arguments) for call in message.tool_calls] == tool_calls_of(said)
    ids = [call["id"] for call in said["tool_calls"]]
    assert not ids or [call.call_id for call in message.tool_calls] == ids
    assert "".join(part.text for part in message.parts if isinstance(part, Refusal)) == (
        said.get("refusal") or ""
    )
    assert [part.item["type"] for part in message.parts if isinstance(part, Item)] == said.get(
        "server_items", []
    )
    assert answer.raw_stop_reason == said["stop_reason"]
    assert answer.usage == usage_of(expected)
    assert answer.model == expected["result"]["model"]


@pytest.mark.parametrize("path", cases())
async def test_a_recorded_exchange_cut_anywhere_is_a_broken_stream(path, replay):
    expected = json.loads(path.read_text())
    if not expected["ok"]:
        pytest.skip("an error is not cut")
    recorded = json.loads((RECORDED / path.name).read_text())
    size = len(recorded["response_body"].encode())
    for share in (0.1, 0.35, 0.6, 0.85):
        service = provider(expected, replay, f"{expected['id']}@cut={int(size * share)}")
        with pytest.raises(ProviderStreamBroken) as error:
            await hear(service)
        assert error.value.retryable
        await service.aclose()


@pytest.mark.parametrize("path", cases())
async def test_a_recorded_answer_is_a_history_that_can_be_sent_on_to_every_service(path, replay):
    expected = json.loads(path.read_text())
    if not expected["ok"]:
        pytest.skip("an error is no history")
    service = provider(expected, replay, expected["id"])
    message = result(await hear(service)).message
    await service.aclose()
    for kind in KIND.values():
        other = serve(kind, replay, headers={"x-case": expected["id"]}, timeout=0.5)
        stream = other.stream(request(message))  # building the request is what must not fail
        await stream.aclose()
        await other.aclose()
    assert message.to_json()


@pytest.mark.parametrize("kind", KIND.values())
@pytest.mark.parametrize(
    ("case", "code", "retryable", "retry_after"),
    [
        ("!401", "provider_unauthorized", False, None),
        ("!429:retry-after=3", "provider_rate_limited", True, 3.0),
        ("!500", "provider_overloaded", True, None),
        ("!529", "provider_overloaded", True, None),
        ("!reset", "provider_unreachable", True, None),
        ("!hang", "provider_timed_out", True, None),
    ],
)
async def test_a_failing_service_is_one_error(kind, case, code, retryable, retry_after, replay):
    service = serve(kind, replay, headers={"x-case": case}, timeout=0.3)
    with pytest.raises(ProviderError) as error:
        await hear(service)
    assert (error.value.code, error.value.retryable, error.value.retry_after) == (
        code,
        retryable,
        retry_after,
    )
    await service.aclose()
