"""OpenAI's interfaces by its official client for Node, which ``make clients`` installs."""

import pytest
from support.clients import running
from support.gateway import open_gateway
from support.openai_clients import MODEL, stand
from support.stage import FIRST_WORDS

pytestmark = pytest.mark.one_server


async def test_the_official_client_for_node_uses_every_operation(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path) as (_, api, _),
        running("openai.mjs", api.url, "operations") as program,
    ):
        found = await program.said()
    assert all(text.startswith(FIRST_WORDS) for text in found["texts"])
    assert "I was shown 3 messages" in found["texts"][0]
    assert (found["usage"], found["input"], found["short"]) == (2, "two", "compaction")
    assert found["items"] == ["user", "user", "assistant"]
    assert found["ids"][0] == found["ids"][1]
    assert (found["metadata"], found["gone"], found["missing"]) == ({"a": "b"}, True, 404)
    assert (found["models"], found["model"]) == (["stage", "understudy", "*/*"], MODEL)


@pytest.mark.main_path
async def test_the_official_client_for_node_goes_on_at_another_gateway(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path) as (ensemble, api, _),
        open_gateway(redis_url) as (other, _),
        running("openai.mjs", api.url, "resume", other.url) as program,
    ):
        assert await program.said() == "left"
        ensemble.stage.open("g")
        found = await program.said()
    assert found["numbers"] == list(range(len(found["numbers"])))
    assert found["text"] == found["whole"]
    assert found["text"].startswith(FIRST_WORDS)
