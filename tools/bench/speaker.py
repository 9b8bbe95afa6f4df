"""``python -m bench.speaker URL NUMBER PACE SECONDS``: publishes events of sessions at a steady pace, as workers do.

It replaces the many workers this would take, so that the readers get the machine. Each event is in the log and on the
channel of its session, with the time at which it was sent. The sessions have the fields that show a reader that they
still exist: without them, it would read the log for each event.
"""

import asyncio
import json
import sys
import time

import uvloop

from antiphon.client import AsyncClient

TICKS = 100  # a second
PUBLISH = """
for i = 1, #ARGV, 5 do
  redis.call('XADD', ARGV[i + 1], 'MAXLEN', '~', 200, ARGV[i + 3] .. '-0', 'e', ARGV[i + 4])
  redis.call('HSET', ARGV[i], 'seq', ARGV[i + 3], 'created', 1, 'life', 1)
  redis.call('PUBLISH', ARGV[i + 2], ARGV[i + 4])
end
"""


async def speak(url: str, number: int, pace: float, seconds: float) -> None:
    async with AsyncClient(url) as client:
        (cell,) = client.connections.cells
        sessions = [f"live-{index}" for index in range(number)]
        names = [
            (cell.keys.session(one), cell.keys.events(one), cell.keys.live(cell.database, one))
            for one in sessions
        ]
        seqs, sent, began = [0] * number, 0, time.monotonic()
        publish = cell.redis.register_script(PUBLISH)
        print("speaking", flush=True)
        while time.monotonic() - began < seconds:
            due = int((time.monotonic() - began) * pace * number)
            said: list[str | int | bytes] = []
            for at in range(sent, due):
                which = at % number
                seqs[which] += 1
                said += [*names[which], seqs[which], _event(sessions[which], seqs[which])]
            if said:
                await publish(args=said)
            sent = due
            await asyncio.sleep(1 / TICKS)
        print(json.dumps({"sent": sent, "seconds": time.monotonic() - began}), flush=True)


def _event(session: str, seq: int) -> bytes:
    return (
        b'{"seq":%d,"at":%d,"type":"text_delta","session_id":"%b","turn_id":"0123456789abcdef0123456789abcdef",'
        b'"run":1,"attempt":1,"step":1,"text":"word @%019d"}'
        % (seq, time.time_ns() // 1_000_000, session.encode(), time.monotonic_ns())
    )


if __name__ == "__main__":
    uvloop.run(speak(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
