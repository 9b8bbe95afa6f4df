"""Anthropic's models at Bedrock and Vertex AI: where the requests go, and how they are signed in.

No cloud is called: the servers of the test answer as the Messages API does, which both clouds offer with server-sent
events. The signatures are those of boto3, and the tokens those of google-auth, with credentials of the test.
"""

from __future__ import annotations

import anthropic.lib.aws._auth
import pytest
from support.services.conversation import hear, message_events, request, result, text_block
from support.services.wire_server import Reply, WireServer, json_reply, sse

from antiphon.errors import MissingPackage, ProviderOverloaded, ProviderUnauthorized, SettingsError
from antiphon.model import Message
from antiphon_worker.providers.anthropic import clouds
from antiphon_worker.providers.anthropic.clouds import AnthropicBedrock, AnthropicVertex

ANSWER = sse(message_events(text_block("Hel", "lo")), named=True)
PLACE = "/projects/our-project/locations/europe-west1/publishers/anthropic/models"
AWS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_BEARER_TOKEN_BEDROCK",
)


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch, tmp_path):
    for name in (*AWS, "AWS_REGION", "AWS_DEFAULT_REGION", "CLOUD_ML_REGION", "ANTHROPIC_VERTEX_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    anthropic.lib.aws._auth._get_session.cache_clear()  # it keeps credentials of other tests


def vertex(server, **options):
    given = {
        "region": "europe-west1",
        "project": "our-project",
        "max_retries": 0,
        "base_url": server.url,
        **options,
    }
    return AnthropicVertex(**given)


def bedrock(server, **options):
    pytest.importorskip("boto3", reason="pip install 'antiphon[dev]' has it")
    return AnthropicBedrock(**{"region": "eu-central-1", "max_retries": 0, "base_url": server.url, **options})


async def test_a_request_to_bedrock_is_signed_with_the_credentials_of_the_machine(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-a-test")
    async with WireServer(Reply([ANSWER]), Reply([ANSWER])) as server:
        provider = bedrock(server)
        for text in ("Hello", "Hello again"):
            found = await hear(provider, request(Message.user(text), system="Be brief."))
            assert result(found).message.text == "Hello"
        await provider.aclose()
    first, second = server.seen
    assert (first.target, first.body["model"], first.body["stream"]) == ("/v1/messages", "a-model", True)
    for one in (first, second):
        assert one.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIATEST/")
        assert "/eu-central-1/" in one.headers["authorization"]
    assert first.headers["authorization"] != second.headers["authorization"]
    assert result(found).message.provider == "bedrock"


async def test_a_request_to_bedrock_may_have_an_api_key():
    async with WireServer(Reply([ANSWER])) as server:
        provider = bedrock(server, api_key="bedrock-api-key-of-a-test")
        await hear(provider)
        await provider.aclose()
    assert server.seen[0].headers["authorization"] == "Bearer bedrock-api-key-of-a-test"


async def test_bedrock_without_credentials_or_a_region_is_refused():
    async with WireServer() as server:
        with pytest.raises(ProviderUnauthorized, match="no credentials for Bedrock"):
            await hear(bedrock(server))
        with pytest.raises(ProviderUnauthorized, match="Bedrock cannot be used"):
            await hear(bedrock(server, region=None, base_url=None))


async def test_a_request_to_vertex_names_the_model_in_its_address():
    async with WireServer(Reply([ANSWER])) as server:
        provider = vertex(server, api_key="a-token-of-a-test")
        asked = request(Message.user("Hello"), params={"temperature": 0.5})
        asked.model = "claude-opus-4-5@20251101"
        found = await hear(provider, asked)
        await provider.aclose()
    [seen] = server.seen
    assert seen.target == f"{PLACE}/claude-opus-4-5@20251101:streamRawPredict"
    assert "model" not in seen.body
    assert (seen.body["anthropic_version"], seen.body["stream"]) == ("vertex-2023-10-16", True)
    assert seen.body["temperature"] == 0.5
    assert seen.headers["authorization"] == "Bearer a-token-of-a-test"
    assert (result(found).message.text, result(found).message.provider) == ("Hello", "vertex")


async def test_vertex_takes_a_token_for_each_request_from_a_function():
    tokens = iter(["first", "second"])
    async with WireServer(Reply([ANSWER]), Reply([ANSWER])) as server:
        provider = vertex(server, api_key=lambda: next(tokens))
        for _ in range(2):
            await hear(provider)
        await provider.aclose()
    assert [one.headers["authorization"] for one in server.seen] == ["Bearer first", "Bearer second"]


async def test_vertex_signs_in_with_the_credentials_of_the_machine_and_renews_them(monkeypatch):
    pytest.importorskip("google.auth", reason="pip install 'antiphon[dev]' has it")
    import anthropic.lib.vertex._client as client

    class Credentials:
        token, expired = "", True

        def renew(self):
            self.token, self.expired = f"{self.token}x", self.token == ""

    found = Credentials()
    monkeypatch.setattr(client, "load_auth", lambda *, project_id: (found, project_id))
    monkeypatch.setattr(client, "refresh_auth", Credentials.renew)
    async with WireServer(*[Reply([ANSWER])] * 3) as server:
        provider = vertex(server)
        for _ in range(3):
            await hear(provider)
        await provider.aclose()
    assert [one.headers["authorization"] for one in server.seen] == ["Bearer x", "Bearer xx", "Bearer xx"]


async def test_vertex_without_credentials_is_refused_and_errors_of_a_cloud_are_those_of_the_service(
    monkeypatch,
):
    exceptions = pytest.importorskip("google.auth.exceptions", reason="pip install 'antiphon[dev]' has it")
    import anthropic.lib.vertex._client as client

    def fails(**_):
        raise exceptions.DefaultCredentialsError("no credentials here")

    monkeypatch.setattr(client, "load_auth", fails)
    async with WireServer(json_reply({"error": {"message": "busy"}}, 529)) as server:
        with pytest.raises(ProviderUnauthorized, match="no credentials for Vertex AI"):
            await hear(vertex(server))
        with pytest.raises(ProviderOverloaded):
            await hear(vertex(server, api_key="a-token-of-a-test"))


def test_what_is_missing_is_named(monkeypatch):
    with pytest.raises(SettingsError, match="needs region= and project="):
        AnthropicVertex(api_key="a-token", region="europe-west1")
    monkeypatch.setenv("CLOUD_ML_REGION", "europe-west1")
    monkeypatch.setenv("ANTHROPIC_VERTEX_PROJECT_ID", "our-project")
    assert AnthropicVertex(api_key="a-token").name == "vertex"
    monkeypatch.setattr(clouds, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"antiphon\[bedrock\]"):
        AnthropicBedrock()
    with pytest.raises(MissingPackage, match=r"antiphon\[vertex\]"):
        AnthropicVertex()
