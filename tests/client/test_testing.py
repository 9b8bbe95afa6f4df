"""Scripts: what users write to test their own agents."""

import subprocess
import sys

import pytest

from antiphon.errors import ProviderOverloaded, ProviderRejected
from antiphon.model import Text, ToolCall, Usage
from antiphon.testing import Answer, Script, answer, script, tool_call


async def parts_of(made, count):
    return [(await made.next(f"request {n}")).parts for n in range(count)]


async def test_each_entry_answers_one_model_call_and_the_request_is_noted():
    failure = ProviderOverloaded()
    made = script("Hello", tool_call("look", at="Rome"), ["a", Text("b")], {"a": 1}, failure)
    expected = [
        ("Hello",),
        (ToolCall("", "look", {"at": "Rome"}),),
        ("a", Text("b")),
        ('{"a":1}',),
        (failure,),
    ]
    assert not made.done
    assert await parts_of(made, 5) == expected
    assert made.requests == [f"request {n}" for n in range(5)]
    assert made.done


async def test_a_call_beyond_the_last_entry_says_so_and_is_not_tried_again():
    made = script("Hello")
    await made.next("one")
    with pytest.raises(ProviderRejected, match="no answer to model call 2: it ends after 1") as caught:
        await made.next("two")
    assert not caught.value.retryable


async def test_a_script_can_begin_again():
    assert await parts_of(script("a", "b", repeat=True), 5) == [("a",), ("b",), ("a",), ("b",), ("a",)]
    with pytest.raises(ProviderRejected):
        await script(repeat=True).next("one")


async def test_a_function_is_given_the_request():
    async def later(request):
        return answer(request.upper(), usage=Usage(1, 1))

    made = script(lambda request: [request, "!"], later)
    assert (await made.next("hi")).parts == ("hi", "!")
    assert await made.next("hi") == Answer(("HI",), usage=Usage(1, 1))


def test_a_tool_may_have_an_argument_called_name():
    assert tool_call("greet", name="Ann").arguments == {"name": "Ann"}


@pytest.mark.parametrize("entry", [3, None, ["a", 3], [["nested"]], str, b"bytes"])
def test_what_is_no_answer_is_refused_when_the_script_is_written(entry):
    with pytest.raises(TypeError, match="A script entry must be"):
        Script([entry])


@pytest.mark.main_path
def test_testing_needs_none_of_the_workers_packages():
    code = (
        "import sys, antiphon.testing, antiphon.tools, antiphon.window\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'antiphon_worker', 'openai', 'anthropic', 'pydantic', 'redis', 'rq'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
