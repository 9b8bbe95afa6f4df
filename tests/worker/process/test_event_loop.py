"""The event loop of a worker process outlives what its tasks raise."""

import asyncio
import signal
import threading

import pytest

from antiphon_worker.supervisor.event_loop import run_to_its_end


async def ends(error):
    raise error


@pytest.fixture
def _ctrl_c_has_a_handler():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_has_a_handler")
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_task_that_ends_the_process_ends_only_itself(error):
    async def main():
        goes_on = asyncio.Event()
        beside = asyncio.create_task(goes_on.wait())
        with pytest.raises(type(error)):
            await asyncio.create_task(ends(error))
        found = await asyncio.gather(ends(error), ends(ValueError()), return_exceptions=True)
        assert [type(one) for one in found] == [type(error), ValueError]
        goes_on.set()
        return await beside

    assert run_to_its_end(main()) is True


@pytest.mark.parametrize("error", [SystemExit(3), ValueError()])
def test_what_the_coroutine_itself_raises_ends_the_loop(error):
    with pytest.raises(type(error)):
        run_to_its_end(ends(error))


def test_ctrl_c_ends_a_loop_that_has_no_handler_for_it():
    async def main():
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run_to_its_end(main())


def test_a_function_in_a_thread_that_raises_stop_iteration_ends():
    async def main():
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.to_thread(lambda: next(iter(())))

    run_to_its_end(main())


def test_slow_functions_in_threads_leave_threads_to_others():
    meeting = threading.Event()

    async def main():
        slow = [asyncio.create_task(asyncio.to_thread(meeting.wait, 60)) for _ in range(64)]
        await asyncio.sleep(0)
        await asyncio.to_thread(meeting.set)
        return await asyncio.gather(*slow)

    assert run_to_its_end(main()) == [True] * 64
