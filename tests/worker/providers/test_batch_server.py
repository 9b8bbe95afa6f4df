"""The batch endpoints in miniature answer as the SDKs expect, so that tests of batches test the real forms."""

import json

import anthropic
import openai
from anthropic.types.messages import MessageBatch
from openai.types import Batch
from support.services.batch_server import BatchServer, said_by


async def test_openais_client_sends_and_reads_a_batch():
    async with (
        BatchServer(
            lambda body: said_by("openai-chat", body["messages"][0]["content"]), quick=False
        ) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k") as client,
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
        file = await client.files.create(file=("f.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"antiphon": "x"},
        )
        Batch.model_validate(batch.model_dump(), strict=True)
        assert [(one.id, one.metadata) async for one in client.batches.list()] == [
            (batch.id, {"antiphon": "x"})
        ]
        server.finish()
        done = await client.batches.retrieve(batch.id)
        assert done.status == "completed"
        found = json.loads((await client.files.content(done.output_file_id)).content)
        assert (found["custom_id"], found["response"]["status_code"]) == ("one", 200)
        answer = openai.types.chat.ChatCompletion.model_validate(found["response"]["body"])
        assert answer.choices[0].message.content == "Hello"
        assert (await client.files.delete(file.id)).deleted


async def test_anthropics_client_sends_and_reads_a_batch():
    async with (
        BatchServer(lambda body: said_by("anthropic", body["messages"][0]["content"]), quick=False) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="k") as client,
    ):
        params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
        made = await client.messages.batches.create(
            requests=[{"custom_id": name, "params": params} for name in ("one", "two")]
        )
        MessageBatch.model_validate(made.model_dump(), strict=True)
        assert (made.processing_status, made.request_counts.processing) == ("in_progress", 2)
        assert [one.id async for one in client.messages.batches.list()] == [made.id]
        server.failing["two"] = "too long"
        server.finish()
        results = {one.custom_id: one.result async for one in await client.messages.batches.results(made.id)}
        assert results["one"].message.content[0].text == "Hello"
        assert results["two"].error.error.message == "too long"
        assert (await client.messages.batches.delete(made.id)).type == "message_batch_deleted"
