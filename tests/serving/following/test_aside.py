"""A thread that may be kept waiting for ever."""

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from mlx_platform.serving.following.aside import Aside, StillBusyError, short_turns


def test_it_gives_what_was_made_or_raises_what_was_raised():
    async def main():
        aside = Aside("test")
        assert await aside.do(threading.current_thread, 20) is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await aside.do(lambda: 1 // 0, 20)
        assert await aside.do(lambda: 3, 20) == 3

    asyncio.run(main())


def test_who_waits_too_long_is_told_and_nothing_else_is_begun_meanwhile():
    async def main():
        aside, gate, done = Aside("test"), threading.Event(), threading.Event()

        def slow():
            gate.wait()
            done.set()

        with pytest.raises(StillBusyError):
            await aside.do(slow, 0.01)
        with pytest.raises(StillBusyError):
            await aside.do(lambda: 1, 20)
        gate.set()
        await asyncio.to_thread(done.wait)
        while True:  # until the loop has heard of it
            try:
                assert await aside.do(lambda: 2, 20) == 2
            except StillBusyError:
                await asyncio.sleep(0)
            else:
                return

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness of their own")
def test_a_gentle_one_leaves_the_cores_to_others_and_no_other_thread_is_gentle():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def main():
        before = niceness()
        assert await Aside("test").do(niceness, 20) == before
        assert await Aside("test", gentle=True).do(niceness, 20) > before
        assert niceness() == before

    asyncio.run(main())


def test_threads_take_short_turns_only_as_long_as_they_should():
    before = sys.getswitchinterval()
    with suppress(ZeroDivisionError), short_turns():
        assert sys.getswitchinterval() < before / 5
        raise ZeroDivisionError
    assert sys.getswitchinterval() == before


def test_a_closed_one_ends_its_thread_after_what_it_does():
    async def main():
        aside = Aside("test")
        thread = await aside.do(threading.current_thread, 20)
        aside.close()
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()

    asyncio.run(main())


def test_a_process_ends_whatever_it_is_in_the_middle_of():
    code = (
        "import asyncio, threading\n"
        "from mlx_platform.serving.following.aside import Aside\n"
        "async def main():\n"
        "    work = asyncio.ensure_future(Aside('x').do(threading.Event().wait, 60))\n"
        "    await asyncio.sleep(0.05)\n"
        "    work.cancel()\n"
        "asyncio.run(main())\n"
        "print('ended')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    assert ended.stdout == "ended\n"
