"""SIGTERM of ``antiphon serve`` while OpenAI's clients wait: a repetition with its key gets the one result."""

import asyncio
import json

import openai
import pytest
from support.clients import running
from support.eventually import patience
from support.gateway import Api
from support.gateway_process import Stand, gathered
from support.network import free_port
from support.openai_clients import MODEL
from support.stage import FIRST_WORDS

pytestmark = pytest.mark.one_server

TEXT = "go gate:g"
HELLO = [{"role": "user", "content": TEXT}]


@pytest.fixture
def stand(redis_url, processes, tmp_path) -> Stand:
    return Stand(redis_url, processes, tmp_path)


async def turns_and_model_calls(stand, url) -> tuple[int, int]:
    async with Api(url).http as http:
        sessions = (await http.get("/sessions")).json()["sessions"]
    return len(sessions), len(stand.stage.notes("asked"))


@pytest.mark.main_path
async def test_requests_that_wait_get_503_and_their_repetitions_get_the_result(stand):
    port = free_port()
    gateway, url = stand.gateway("--drain", "5", port=port)
    stand.worker()
    statuses = []

    def noted(response) -> None:
        statuses.append((response.status_code, response.headers.get("retry-after")))

    async def note(response) -> None:
        noted(response)

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=6) as client:
        client._client.event_hooks["response"].append(note)
        asked = [
            asyncio.ensure_future(
                client.responses.create(model=MODEL, input=TEXT, extra_headers={"Idempotency-Key": "r"})
            ),
            asyncio.ensure_future(
                client.chat.completions.create(
                    model=MODEL, messages=HELLO, extra_headers={"Idempotency-Key": "c"}
                )
            ),
        ]
        await stand.waits("g", 2)
        assert await asyncio.to_thread(gateway.terminate, 10) == 0
        await asyncio.to_thread(stand.gateway, port=port)  # where the client comes back to
        stand.stage.open("g")
        made, completion = await asyncio.wait_for(asyncio.gather(*asked), patience(40))
    assert statuses[:2] == [(503, "1")] * 2
    assert made.status == "completed"
    texts = made.output_text, completion.choices[0].message.content
    assert all(text.startswith(FIRST_WORDS) for text in texts)
    assert await turns_and_model_calls(stand, url) == (2, 2), "each was made once"


@pytest.mark.main_path
async def test_streams_end_without_their_end_and_go_on_at_the_next_gateway(stand):
    port = free_port()
    gateway, url = stand.gateway("--drain", "5", port=port)
    stand.worker()
    key = {"extra_headers": {"Idempotency-Key": "c"}}
    chat = {"model": MODEL, "messages": HELLO, "stream": True, **key}
    seen, chunks = [], []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=6) as client:
        streams = (
            await client.responses.create(model=MODEL, input=TEXT, stream=True),
            await client.chat.completions.create(**chat),
        )
        reading = asyncio.gather(*map(gathered, streams, (seen, chunks)))
        await stand.waits("g", 2)
        assert await asyncio.to_thread(gateway.terminate, 10) == 0
        await reading
        assert seen[-1].type != "response.completed"
        assert not any(chunk.choices[0].finish_reason for chunk in chunks)
        await asyncio.to_thread(stand.gateway, port=port)
        stand.stage.open("g")
        last = seen[-1].sequence_number
        await gathered(
            await client.responses.retrieve(seen[0].response.id, stream=True, starting_after=last), seen
        )
        chunks.clear()
        await gathered(await client.chat.completions.create(**chat), chunks)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    made = seen[-1].response
    assert made.output_text.startswith(FIRST_WORDS)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert (said, chunks[-1].choices[0].finish_reason) == (made.output_text, "stop")
    assert await turns_and_model_calls(stand, url) == (2, 2), "each was made once"


async def test_a_request_without_a_key_is_not_repeated_by_the_client(stand):
    gateway, url = stand.gateway("--drain", "5")
    stand.worker()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=6) as client:
        asked = asyncio.ensure_future(client.responses.create(model=MODEL, input=TEXT))
        await stand.waits("g")
        assert await asyncio.to_thread(gateway.terminate, 10) == 0
        with pytest.raises(openai.InternalServerError) as caught:
            await asked
    assert (caught.value.status_code, caught.value.code) == (503, "draining")
    _, url = await asyncio.to_thread(stand.gateway)
    stand.stage.open("g")
    turn = caught.value.message.partition("/turns/")[2].partition("/")[0]
    async with Api(url).http as http:
        found = json.loads((await http.get(f"/turns/{turn}/result?wait=20")).content)
    assert found["response"]["text"].startswith(FIRST_WORDS), "its answer is where the error says"
    assert await turns_and_model_calls(stand, url) == (1, 1)


@pytest.mark.main_path
async def test_the_official_client_for_node_gets_the_result_with_the_same_key(stand):
    port = free_port()
    gateway, url = stand.gateway("--drain", "5", port=port)
    stand.worker()
    async with running("openai.mjs", url, "drained") as program:
        await stand.waits("g", 4)
        assert await asyncio.to_thread(gateway.terminate, 10) == 0
        assert await program.said() == {"response": False, "chat": False}, (
            "whether the streams came to their end"
        )
        await asyncio.to_thread(stand.gateway, port=port)
        stand.stage.open("g")
        program.go_on()
        found = await program.said()
    assert found["statuses"][:2] == [[503, "1"], [503, "1"]]
    assert all(text.startswith(FIRST_WORDS) for text in found["texts"])
    assert len(found["texts"]) == 4
    assert found["numbers"] == list(range(len(found["numbers"])))
    assert await turns_and_model_calls(stand, url) == (4, 4), "each was made once"
