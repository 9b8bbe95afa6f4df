"""Tool calls end in results, whatever the tool does."""

import asyncio
import contextvars
import os
import threading

import pytest
from support.eventually import wait_until
from support.fresh_python import printed_by

from antiphon.errors import InvalidTool, SettingsError, ToolRaised
from antiphon.model import Image, Text, ToolCall, ToolResult
from antiphon.tools import Context, tool
from antiphon.tools.threads import Threads
from antiphon_worker.loop.toolbox import ToolBox, TurnStopped, shorten, tool_specs

flavour: contextvars.ContextVar[str] = contextvars.ContextVar("flavour", default="none")


async def run(function, /, *, box=None, raw=None, **arguments):
    """Run one call of a tool and return its result."""
    made = tool(function) if callable(function) and not hasattr(function, "parameters") else function
    call = ToolCall("c1", made.name, arguments) if raw is None else ToolCall.from_text("c1", made.name, raw)
    return await (box or ToolBox([made])).run(call, Context("s", "t", "c1"))


async def test_async_functions_are_awaited_on_the_loop():
    async def where() -> str:
        return threading.current_thread().name

    assert (await run(where)).content == threading.current_thread().name


async def test_sync_functions_run_in_a_thread_with_the_context_variables_of_the_caller():
    def where() -> str:
        return f"{threading.current_thread() is threading.main_thread()} {flavour.get()}"

    flavour.set("vanilla")
    assert (await run(where)).content == "False vanilla"


async def test_what_a_sync_function_sets_stays_in_its_own_context():
    def change() -> str:
        flavour.set("chocolate")
        return flavour.get()

    assert (await run(change)).content == "chocolate"
    assert flavour.get() == "none"


async def test_sync_functions_run_side_by_side():
    barrier = threading.Barrier(3, timeout=10)

    @tool
    def meet() -> str:
        return str(barrier.wait() >= 0)

    box = ToolBox([meet])
    results = await asyncio.gather(*(run(meet, box=box) for _ in range(3)))
    assert [result.content for result in results] == ["True"] * 3


@pytest.mark.parametrize("error", [ValueError("no such city"), SystemExit(2), TimeoutError("t")])
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_is_told_to_the_model_with_its_type_and_message(error, is_async):
    def raises() -> str:
        raise error

    async def raises_async() -> str:
        raise error

    result = await run(raises_async if is_async else raises)
    assert result.is_error
    assert result.content == f"{type(error).__name__}: {error}"


async def test_stop_iteration_in_a_thread_is_an_error_like_any_other():
    def raises() -> str:
        return next(iter(()))

    assert "StopIteration" in (await run(raises)).content


async def test_an_error_meant_for_the_model_is_told_as_it_stands_and_not_logged(caplog):
    def book() -> str:
        raise ToolRaised("The hotel is full; try the next week.")

    assert (await run(book)).content == "The hotel is full; try the next week."
    assert caplog.records == []


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_log_has_the_traceback_of_a_tool_that_raised_with_its_turn(is_async, caplog):
    caplog.set_level("DEBUG", "antiphon.tools")

    def charge() -> str:
        raise KeyError("no such card")

    async def charge_async() -> str:
        raise KeyError("no such card")

    await run(charge_async if is_async else charge)
    warning, record = caplog.records
    assert "no such card" not in warning.getMessage()
    assert warning.exc_info is None
    assert warning.levelname == "WARNING"
    assert record.levelname == "DEBUG"
    assert (record.turn, record.session) == (warning.turn, warning.session) == ("t", "s")
    assert warning.getMessage().startswith(f"tool {record.tool} (call c1) in turn t of session s: KeyError")
    assert record.tool == ("charge_async" if is_async else "charge")
    assert 'raise KeyError("no such card")' in caplog.text


async def test_the_log_says_which_tool_took_too_long_or_returned_what_cannot_be_told(caplog):
    @tool(timeout=0.01)
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    async def odd():
        return object()

    await run(hang)
    await run(odd)
    assert [(record.tool, record.action) for record in caplog.records] == [
        ("hang", "tool_timed_out"),
        ("odd", "tool_raised"),
    ]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_takes_too_long_is_told_so(is_async):
    release = threading.Event()

    @tool(timeout=0.02)
    def hang() -> str:
        release.wait(30)
        return "late"

    @tool(timeout=0.02)
    async def hang_async() -> str:
        await asyncio.Event().wait()
        return "never"

    result = await run(hang_async if is_async else hang)
    release.set()
    assert result.is_error
    assert result.content == "The tool did not return within 0.02 s."


async def test_the_toolbox_time_holds_for_tools_that_name_none():
    async def hang() -> None:
        await asyncio.Event().wait()

    made = tool(hang)
    assert "within 0.01 s." in (await run(made, box=ToolBox([made], timeout=0.01))).content


async def test_hanging_tools_do_not_starve_the_others():
    release = threading.Event()

    @tool(timeout=0.02)
    def hang() -> None:
        release.wait(30)

    @tool
    def quick() -> str:
        return "here"

    box = ToolBox([hang, quick], threads=Threads(limit=2))
    for _ in range(3):
        await asyncio.gather(run(hang, box=box), run(hang, box=box))
    assert (await run(quick, box=box)).content == "here"
    release.set()


async def test_the_time_of_a_tool_counts_from_its_start_and_not_from_its_place_in_the_queue():
    release, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool
    def hold() -> str:
        loop.call_soon_threadsafe(begun.set)
        release.wait(30)
        return "held"

    @tool(timeout=0.5)
    def quick() -> str:
        return "here"

    box = ToolBox([hold, quick], threads=Threads(limit=1))
    holding = asyncio.create_task(run(hold, box=box))
    await begun.wait()
    waiting = asyncio.create_task(run(quick, box=box))
    done, _ = await asyncio.wait([waiting], timeout=1)
    assert not done
    release.set()
    assert ((await waiting).content, (await holding).content) == ("here", "held")


async def test_a_tool_for_which_no_thread_is_free_is_not_run_and_the_model_is_told_so():
    release, ran = threading.Event(), []

    @tool
    def hold() -> None:
        release.wait(30)

    @tool
    def quick() -> None:
        ran.append(1)

    box = ToolBox([hold, quick], threads=Threads(limit=1), patience=0.05)
    holding = asyncio.create_task(run(hold, box=box))
    await asyncio.sleep(0)
    result = await run(quick, box=box)
    assert result.is_error
    assert result.content == "The tool was not run: no thread was free for it within 0.05 s."
    release.set()
    await holding
    await run(hold, box=box)
    assert ran == []


async def test_where_the_system_starts_no_more_threads_calls_wait_for_those_that_there_are(monkeypatch):
    release, begun, ran = threading.Event(), asyncio.Event(), []
    loop, start = asyncio.get_running_loop(), threading.Thread.start

    @tool
    def hold() -> str:
        loop.call_soon_threadsafe(begun.set)
        release.wait(30)
        return "held"

    @tool
    def quick(call: str) -> str:
        ran.append(call)
        return "here"

    def starts(thread: threading.Thread) -> None:
        if thread.name == "antiphon tool":
            raise RuntimeError("can't start new thread")
        start(thread)

    box = ToolBox([hold, quick], threads=Threads(limit=8))
    holding = asyncio.create_task(run(hold, box=box))
    await begun.wait()
    monkeypatch.setattr(threading.Thread, "start", starts)
    monkeypatch.setattr(box, "patience", 0.05)
    assert "no thread was free" in (await run(quick, box=box, call="first")).content
    monkeypatch.setattr(box, "patience", 30)
    waiting = asyncio.create_task(run(quick, box=box, call="second"))
    await asyncio.sleep(0)
    release.set()
    assert ((await waiting).content, (await holding).content) == ("here", "held")
    assert (ran, box.threads._busy.total()) == (["second"], 0)


async def test_one_slow_tool_leaves_threads_to_the_others():
    release = threading.Event()

    def slow(name):
        def function() -> str:
            release.wait(30)
            return name

        return tool(name=name)(function)

    slow_tools = [slow(f"slow{number}") for number in range(4)]
    box = ToolBox([*slow_tools, quick := _named("quick")], threads=Threads(limit=64))
    sleeping = [asyncio.create_task(run(one, box=box)) for one in slow_tools for _ in range(70)]
    await asyncio.sleep(0)
    assert (await run(quick, box=box)).content == "quick"
    assert [box.threads._busy[one.name] for one in slow_tools] == [32, 16, 8, 4]
    release.set()
    assert len([await one for one in sleeping]) == 280


async def test_a_turn_that_stops_takes_back_the_calls_that_wait():
    release, ran = threading.Event(), []

    @tool
    def hold() -> None:
        release.wait(30)

    @tool
    def late() -> None:
        ran.append(1)

    box = ToolBox([hold, late], threads=Threads(limit=1))
    holding = asyncio.create_task(run(hold, box=box))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(run(late, box=box))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    release.set()
    await holding
    await run(hold, box=box)
    assert ran == []


async def test_the_calls_under_way_are_known_until_they_return():
    told, release = [], threading.Event()

    @tool(timeout=0.02)
    def hang() -> None:
        release.wait(30)

    box = ToolBox([hang])
    box.calls.on_change(lambda calls: told.append(list(calls)))
    await run(hang, box=box)
    assert told[0] == ["hang in turn t"]
    assert told[-1] == ["hang in turn t"], "it goes on in its thread"
    release.set()
    await box.threads.run(lambda: None)
    wait_until(lambda: told[-1] == [])


async def test_threads_are_used_again():
    threads = Threads()
    names = {await threads.run(threading.get_ident) for _ in range(5)}
    assert len(names) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_threads_begin_anew_after_a_fork():
    threads = Threads()
    asyncio.run(threads.run(lambda: None))
    child = os.fork()
    if child == 0:
        asyncio.set_event_loop(None)
        os._exit(asyncio.run(threads.run(lambda: 7)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


async def test_cancelling_the_call_cancels_the_tool():
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    task = asyncio.create_task(run(hang))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()


async def test_a_tool_that_cancels_itself_is_an_error_and_not_the_end_of_the_turn():
    async def cancels() -> None:
        raise asyncio.CancelledError

    result = await run(cancels)
    assert result.is_error
    assert "cancelled" in result.content


async def test_a_stop_signal_passes_through():
    async def stops() -> None:
        raise TurnStopped

    with pytest.raises(TurnStopped):
        await run(stops)


class Own(BaseException):
    pass


class Mute(BaseException):
    def __str__(self):
        raise Own

    __repr__ = __str__


@pytest.mark.parametrize(
    "error", [Own("odd"), GeneratorExit("g"), KeyboardInterrupt("k"), Mute(), ToolRaised(Mute())]
)  # type: ignore[arg-type]
@pytest.mark.parametrize("where", ["in a thread", "on the loop", "in its arguments", "in its result"])
async def test_what_is_no_exception_is_told_to_the_model_too(error, where):
    def raises(*_: object) -> object:
        raise error

    @tool
    async def on_the_loop() -> object:
        return raises() if where == "on the loop" else None

    @tool
    def in_a_thread() -> object:
        return raises()

    if where == "in its arguments":
        on_the_loop.bind = raises  # type: ignore[method-assign]
    elif where == "in its result":
        on_the_loop.content_of = raises  # type: ignore[method-assign]
    result = await run(in_a_thread if where == "in a thread" else on_the_loop)
    assert result.is_error
    assert type(error).__name__ in result.content or "could not be read" in result.content


async def test_arguments_that_are_no_json_object_are_told_to_the_model():
    def look(at: str) -> str:
        return at

    for raw in ('{"at": "Ro', "[1]", "null null", '"Rome"'):
        result = await run(look, raw=raw)
        assert result.is_error
        assert raw in result.content


async def test_arguments_that_do_not_fit_are_told_with_the_reason():
    def look(at: str, times: int = 1) -> str:
        return at

    result = await run(look, times="many", where="Rome")
    assert result.is_error
    assert "no argument 'where'" in result.content
    assert "'at' is missing" in result.content
    assert "'times': Expected `int`, got `str`" in result.content


async def test_an_unknown_tool_is_told_with_the_names_of_the_known_ones():
    box = ToolBox([_named("one"), _named("two")])
    result = await box.run(ToolCall("c1", "three", {}), Context())
    assert result == ToolResult(
        "c1", "There is no tool named 'three'. The tools: one, two.", "three", is_error=True
    )
    assert "there are none" in (await ToolBox().run(ToolCall("c1", "x", {}), Context())).content


def _named(name):
    def function() -> str:
        return name

    return tool(name=name)(function)


async def test_a_long_result_keeps_head_and_tail_and_says_what_is_left_out():
    def read() -> str:
        return "a" * 50_000 + "b" * 50_000

    made = tool(read)
    content = (await run(made, box=ToolBox([made], limit=1_000))).content
    assert content == "a" * 500 + "\n[… 99,000 characters left out …]\n" + "b" * 500
    assert len((await run(made)).content) < 70_000


async def test_the_limit_holds_for_all_text_parts_together_and_leaves_images_alone():
    def read() -> list:
        return [Text("a" * 80), Image(data="x" * 500), Text("b" * 80)]

    made = tool(read)
    first, image, last = (await run(made, box=ToolBox([made], limit=100))).content
    assert first.text == "a" * 80
    assert image == Image(data="x" * 500)
    assert last.text == "b" * 10 + "\n[… 60 characters left out …]\n" + "b" * 10


@pytest.mark.parametrize("limit", [0, 1, 2, 9, 10])
def test_shortening_says_exactly_how_much_is_left_out(limit):
    text = "0123456789"
    short = shorten(text, limit)
    kept = sum(short.count(digit) for digit in text) if limit == 10 else limit
    assert kept == limit
    assert (short == text) == (limit == 10)
    if limit < 10:
        assert f"{10 - limit} characters left out" in short


async def test_text_that_no_service_takes_is_replaced():
    def read() -> str:
        return "a\ud800b"

    content = (await run(read)).content
    assert content == "a?b"


def test_tools_with_the_same_name_are_refused():
    with pytest.raises(InvalidTool, match="twice: one"):
        ToolBox([_named("one"), _named("one"), _named("two")])


def test_tools_are_offered_with_name_description_and_schema():
    @tool(strict=True)
    def look(at: str) -> str:
        "Look there."
        return at

    (spec,) = tool_specs([look])
    assert (spec.name, spec.description, spec.strict) == ("look", "Look there.", True)
    assert spec.parameters == look.parameters


@pytest.mark.main_path
def test_a_hanging_tool_does_not_keep_the_interpreter_from_ending(tmp_path):
    code = (
        "import asyncio, threading\n"
        "from antiphon.tools.threads import Threads\n"
        "async def main():\n"
        "    try:\n"
        "        await asyncio.wait_for(Threads().run(threading.Event().wait), 0.05)\n"
        "    except TimeoutError:\n"
        "        print('given up')\n"
        "asyncio.run(main())\n"
    )
    assert printed_by(code) == "given up\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["async def", "def"])
@pytest.mark.parametrize("end", ["return", "raise SystemExit(0)"])
def test_a_fork_that_comes_back_from_its_tool_ends(kind, end):
    """Else two processes would go on with the turn, on the same connections."""
    code = (
        "import asyncio, os\n"
        "from antiphon.model import ToolCall\n"
        "from antiphon.tools import Context, tool\n"
        "from antiphon_worker.loop.toolbox import ToolBox\n"
        "children = []\n"
        "@tool\n"
        f"{kind} beget() -> None:\n"
        "    children.append(os.fork())\n"
        "    if not children[0]:\n"
        f"        {end}\n"
        "asyncio.run(ToolBox([beget]).run(ToolCall('c', 'beget', {}), Context('s', 't', 'c')))\n"
        "print('went on', os.waitpid(children[0], 0)[1] if children[0] else 'in the child', flush=True)\n"
    )
    assert printed_by(code) == "went on 256\n"


@pytest.mark.parametrize(
    ("tool_errors", "told"),
    [
        ("message", "ValueError: card 4111 of Alice"), ("type", "ValueError"),
        (lambda exc: f"({type(exc).__name__})", "(ValueError)"),
        (lambda exc: exc.nothing, "ValueError"),
    ],
)  # fmt: skip
async def test_the_app_says_what_is_told_of_a_tools_exception(tool_errors, told, caplog):
    @tool
    def pay() -> str:
        """Pay."""
        raise ValueError("card 4111 of Alice")

    result = await run(pay, box=ToolBox([pay], tool_errors=tool_errors).offering([pay]))
    assert (result.content, result.is_error) == (told, True)
    assert "4111" not in caplog.text, "above debug the log holds nothing of what the exception says"


def test_what_cannot_say_it_is_refused():
    with pytest.raises(SettingsError, match="tool_errors"):
        ToolBox(tool_errors="nothing")  # type: ignore[arg-type]
