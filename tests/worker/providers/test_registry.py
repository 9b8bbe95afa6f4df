"""Providers by name."""

import subprocess
import sys

import pytest
from support.services.conversation import KINDS, hear, result, said, serve
from support.services.wire_server import WireServer

from antiphon.errors import UnknownProvider
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.registry import BUILT_IN, close_providers, provider_for


@pytest.mark.parametrize("name", sorted(BUILT_IN))
async def test_a_built_in_provider_is_made_once(name):
    assert provider_for(name) is provider_for(name)
    await close_providers()


@pytest.mark.parametrize("name", KINDS)
async def test_a_built_in_provider_has_the_name_it_was_asked_for_by(name):
    assert provider_for(name).name == name
    await close_providers()


def test_an_app_s_own_provider_comes_first_and_is_called_as_the_app_calls_it():
    groq, named = OpenAIChat(base_url="http://127.0.0.1:1"), OpenAIChat(name="mine")
    providers = {"groq": groq, "openai": named}
    assert provider_for("groq", providers) is groq
    assert groq.name == "groq"
    assert provider_for("openai", providers) is named
    assert named.name == "mine"


def test_an_unknown_provider_names_those_that_are_known():
    with pytest.raises(UnknownProvider, match=r"'gorq'.*anthropic, groq, openai, openai-chat, scripted"):
        provider_for("gorq", {"groq": OpenAIChat()})


async def test_an_answer_of_a_named_provider_is_marked_with_its_name():
    async with WireServer(said("openai-chat", "Hi")) as server:
        groq = serve("openai-chat", server.url)
        provider_for("groq", {"groq": groq})
        assert result(await hear(groq)).message.provider == "groq"
        await groq.aclose()


def test_what_a_provider_prints_holds_no_key():
    assert "sk-secret" not in repr(OpenAIChat(api_key="sk-secret", base_url="http://127.0.0.1"))


@pytest.mark.main_path
def test_naming_providers_imports_no_sdk():
    script = """
import sys
from antiphon_worker.providers.registry import provider_for
provider_for("scripted")
assert not {"openai", "anthropic", "httpx2", "httptools"} & set(sys.modules), sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("name", "package"), [("openai", "openai"), ("openai-chat", "openai"), ("anthropic", "anthropic")]
)
def test_a_missing_package_is_named(name, package):
    script = f"""
import sys
sys.modules[{package!r}] = None
from antiphon.errors import MissingPackage
from antiphon_worker.providers.registry import provider_for
try:
    provider_for({name!r})
except MissingPackage as error:
    assert {package!r} in str(error) and "antiphon[worker]" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
