"""Embeddings of OpenAI, through LangChain's package, over HTTP."""

from contextlib import asynccontextmanager

import httpx2
import pytest
from langchain_openai import OpenAIEmbeddings
from openai import APIStatusError
from support.eventually import wait_until_async
from support.here import running_worker
from support.memories import app_with

from antiphon.client import AsyncClient
from antiphon.memory import Memory
from antiphon_demo.modelserver import ModelServer

pytestmark = pytest.mark.one_server


@asynccontextmanager
async def openai(server, **options):
    # Without a tokenizer, which would be fetched from elsewhere; and with a client that the test closes.
    async with httpx2.AsyncClient() as http:
        yield OpenAIEmbeddings(
            model="text-embedding-3-small", base_url=server.openai_url, api_key="any",
            check_embedding_ctx_length=False, max_retries=0, http_async_client=http, **options,
        )  # fmt: skip


async def test_a_turn_is_embedded_over_http_and_found_by_its_words(redis_url, tmp_path):
    async with ModelServer() as server, openai(server) as embeddings:
        memory = Memory(tmp_path / "memory", embeddings, scope="tenant", recall="start")
        async with AsyncClient(redis_url) as client, running_worker(redis_url, app_with(memory)):
            await (await client.submit("s1", "My cat is called Mia.", agent="host", tenant="acme")).result(20)
            await wait_until_async(lambda: _found(memory, embeddings), 20)
            response = await (await client.submit("s2", "My cat?", agent="host", tenant="acme")).result(20)
        assert response.text == "You said: My cat?"


async def _found(memory, embeddings):
    found = await memory.store.asimilarity_search("the name of the cat", 1)
    return [one for one in found if "Mia" in one.page_content]


async def test_vectors_have_the_dimensions_that_are_asked_for_and_depend_on_the_text_alone():
    async with ModelServer() as server, openai(server, dimensions=64) as small, openai(server) as large:
        first = await small.aembed_documents(["one", "two"])
        again = await small.aembed_query("two")
        assert [len(vector) for vector in first] == [64, 64]
        assert first[1] == again != first[0]
        with pytest.raises(APIStatusError) as caught:
            await large.aembed_query("")
        assert caught.value.status_code == 400
