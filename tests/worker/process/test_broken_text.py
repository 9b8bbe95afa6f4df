"""Text that has no UTF-8 form: whoever says it, the turn ends once, with an error that can be read (G1, G2)."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from support.ensemble import agent_spec, open_ensemble

from antiphon.errors import AgentError, ProviderOverloaded, ProviderRejected, TurnCancelled, TurnFailed
from antiphon.model import Message, Text, Usage
from antiphon_worker.app import App
from antiphon_worker.inline_agents import Allow
from antiphon_worker.loop.unfinished import Unfinished
from antiphon_worker.process import turn as turn_module
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.base import (
    ReasoningPiece,
    RefusalPiece,
    StepResult,
    TextPiece,
    ToolCallPiece,
)
from antiphon_worker.settings import Settings

HALF = "half \ud800 a character"
TYPES = {TextPiece: "text_delta", ReasoningPiece: "reasoning_delta", RefusalPiece: "refusal_delta"}


class Says:
    """A provider of an App's own, which does not look at its texts."""

    name = "says"

    def __init__(self, *answers):
        self.answers = list(answers)

    async def stream(self, request):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        message = Message("assistant", [Text(answer)], provider=self.name, model="any")
        yield StepResult(message, Usage(), "end", None, "any")

    async def aclose(self):
        """Nothing is open."""


class Streams(Says):
    """Its answers are those of the pieces that it says first. A piece that is a function is waited for."""

    async def stream(self, request):
        for piece in self.answers.pop(0):
            if callable(piece):
                await piece()
                continue
            yield piece
            if isinstance(piece, StepResult):
                return
        message = Message("assistant", [Text("Said.")], provider=self.name, model="any")
        yield StepResult(message, Usage(), "end", None, "any")


@asynccontextmanager
async def working(url, app):
    """A worker with this App, on this loop."""
    worker = Worker(Settings(retry_delay=0.02), app, url=url)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.abort()
        await running
        await app.aclose()


@pytest.mark.parametrize(
    ("answers", "said", "attempts"),
    [
        ([ProviderRejected(HALF)], "half \ufffd a character", "1"),
        ([ProviderOverloaded(HALF, retry_after=0.0), ProviderRejected(HALF)], "half \ufffd a character", "2"),
        ([HALF], "cannot be stored", "1"),
    ],
    ids=["refused", "retried", "answered"],
)
async def test_a_turn_with_text_that_cannot_be_encoded_ends_at_once(
    answers, said, attempts, redis_url, tmp_path
):
    app = App(providers={"says": Says(*answers, "Fine.")}, travelling=Allow(providers=["says"]))
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, working(ensemble.url, app):
        spec = agent_spec(provider="says", tools=[])
        turn = await ensemble.submit("s", "hello", agent=spec)
        with pytest.raises(AgentError, match=said):
            await turn.result(60)
        assert [await ensemble.field(turn, name) for name in ("attempt", "crashes")] == [attempts, "0"]
        after = await ensemble.submit("s", "and now?", agent=spec)
        assert (await after.result(60)).text == "Fine."


@pytest.mark.parametrize("kind", TYPES)
async def test_half_a_character_in_mid_stream_is_replaced_and_a_whole_one_in_two_halves_is_joined(
    kind, redis_url, tmp_path
):
    """What is sent is sent for all turns of the process, so it must not raise."""

    def delta():
        return ensemble.seen("s", TYPES[kind])

    says = Streams([kind(HALF), delta, kind("\ud83d"), kind("\ude00")], [])
    app = App(providers={"says": says}, travelling=Allow(providers=["says"]))
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, working(ensemble.url, app):
        spec = agent_spec(provider="says", tools=[])
        turn = await ensemble.submit("s", "hello", agent=spec)
        assert (await turn.result(30)).text == "Said."
        deltas = [event.text for event in await ensemble.events("s") if event.type.endswith("_delta")]
        assert "".join(deltas) == "half \ufffd a character\U0001f600"
        assert await ensemble.field(turn, "attempt") == "1"
        await (await ensemble.submit("s", "and now?", agent=spec)).result(30)


@pytest.mark.parametrize("piece", [TextPiece(None), ReasoningPiece(7), ToolCallPiece("c", "", None)])
async def test_a_piece_that_is_no_text_fails_its_turn_alone(piece, redis_url, tmp_path):
    says = Streams([piece], [])
    app = App(providers={"says": says}, travelling=Allow(providers=["says"]))
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, working(ensemble.url, app):
        spec = agent_spec(provider="says", tools=[])
        turn = await ensemble.submit("s", "hello", agent=spec)
        with pytest.raises(TurnFailed, match=r"The worker's code failed: (Attribute|Type)Error"):
            await turn.result(30)
        assert await ensemble.field(turn, "attempt") == "1"
        assert (await (await ensemble.submit("t", "and you?", agent=spec)).result(30)).text == "Said."


def result(**fields):
    usual = {
        "message": Message("assistant", [Text("Said.")], provider="says", model="any"), "usage": Usage(),
        "stop_reason": "end", "raw_stop_reason": None, "model": "any",
    }  # fmt: skip
    return StepResult(**(usual | fields))


@pytest.mark.parametrize(
    "answer",
    [
        result(usage=Usage(None, None)),  # type: ignore[arg-type]
        result(usage=Usage(float("nan"), 1)),  # type: ignore[arg-type]
        result(stop_reason="whatever"),
        result(message=Message("assistant", ["no part"])),  # type: ignore[list-item]
        result(message=Message("nobody", [Text("Said.")])),  # type: ignore[arg-type]
        result(message=Message("assistant", [Text(None)])),  # type: ignore[arg-type]
    ],
    ids=["no usage", "no number", "no stop reason", "no part", "no role", "no text"],
)
async def test_an_answer_of_a_wrong_form_fails_its_turn_and_leaves_its_session_readable(
    answer, redis_url, tmp_path
):
    app = App(providers={"says": Streams([answer], [])}, travelling=Allow(providers=["says"]))
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, working(ensemble.url, app):
        spec = agent_spec(provider="says", tools=[])
        turn = await ensemble.submit("s", "hello", agent=spec)
        with pytest.raises(TurnFailed, match="an invalid answer"):
            await turn.result(30)
        assert await ensemble.field(turn, "attempt") == "1"
        assert (await (await ensemble.submit("s", "and now?", agent=spec)).result(30)).text == "Said."


class Unwritable(Unfinished):
    """What a turn has left, and cannot be written."""

    def record(self, turn_id, session_id):
        if self._question:
            raise ValueError("cannot be written")
        return super().record(turn_id, session_id)


@pytest.mark.parametrize(
    ("text", "code"), [("no fail:rejected", "internal_error"), ("yes gate:g", "turn_cancelled")]
)
async def test_a_turn_whose_end_cannot_be_written_ends_without_what_it_has_said(
    text, code, redis_url, tmp_path, monkeypatch
):
    """Otherwise its lease would expire as often as workers may die."""
    monkeypatch.setattr(turn_module, "Unfinished", Unwritable)
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker():
        turn = await ensemble.submit("s", text)
        if code == "turn_cancelled":
            await ensemble.waits("g")
            await turn.cancel()
        with pytest.raises(AgentError) as raised:
            await turn.result(30)
        assert raised.value.code == code
        assert await ensemble.field(turn, "attempt") == "1"
        assert await ensemble.texts("s") == []
        assert (await (await ensemble.submit("s", "and now?")).result(30)).text


async def test_a_turn_that_is_cancelled_while_it_ends_without_what_it_has_said_is_cancelled(
    redis_url, tmp_path, monkeypatch
):
    monkeypatch.setattr(turn_module, "Unfinished", Unwritable)
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        turn = await ensemble.submit("s", "no fail:rejected")
        conclude = turn_module.TurnAttempt._conclude

        async def concluded(run, outcome):
            if run._bare:
                await turn.cancel()
            return await conclude(run, outcome)

        monkeypatch.setattr(turn_module.TurnAttempt, "_conclude", concluded)
        async with ensemble.worker():
            with pytest.raises(TurnCancelled):
                await turn.result(30)
            assert await ensemble.field(turn, "attempt") == "1"
