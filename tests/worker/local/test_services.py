"""Sessions of this process on the real SDKs, against a model server, in processes that must end without a word."""

import textwrap

import pytest
from support.models import ModelProcess

ASK = """
    import asyncio
    from antiphon import Agent, tool
    from antiphon.errors import AgentError

    agent = Agent(provider="{provider}", model="any", max_tokens=200)
    session = agent.session()
    first = session.run("Hello")
    assert first.text.startswith("[turn 1"), first.text
    for event in session.stream("Again"):
        if event.type == "text_delta":
            break
    assert len(session.messages) == 2

    async def main():
        second = await session.run_async("And now?")
        assert second.text.startswith("[turn 2"), second.text
        async for event in await session.stream_async("Again"):
            if event.type == "text_delta":
                break
        assert len(await session.messages_async()) == 4

    asyncio.run(main())
    asyncio.run(session.run_async("On another loop"))
    third = session.run("And back")
    assert third.text.startswith("[turn 4"), third.text
    try:
        agent.session().run("Hi", model="no-such-model")
    except AgentError as error:
        print(error.code)
"""


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "anthropic"])
def test_a_session_talks_to_a_service_from_any_loop_and_ends_quietly(provider, processes):
    models = ModelProcess(processes)
    code = textwrap.dedent(ASK).replace("{provider}", provider)
    process = processes.python("-W", "error", "-c", code, env=models.environment)
    assert process.wait(60) == 0, process.output
    assert process.output == "provider_rejected\n"
