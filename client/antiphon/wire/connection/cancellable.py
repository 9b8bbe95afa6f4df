"""Connections of redis-py whose writes can be cancelled.

redis-py writes inside ``asyncio.wait_for``, which before Python 3.12 loses a cancellation that arrives at the end of
the write. Then a service would not stop, or a timeout would have no effect.
"""

import asyncio
from collections.abc import Iterable
from functools import cache
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError


@cache
def cancellable(connection: type[Any], *more: type[Any]) -> type[Any]:
    """Return this class of connection with cancellable writes and the additions of ``more``."""
    return type(f"Cancellable{connection.__name__}", (*more, _Cancellable, connection), {})


class _Cancellable:
    stale = False
    """Whether the server is no longer the primary, as far as this process knows."""

    async def send_packed_command(
        self: Any, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """Write a command. A failure closes the connection, because half of the command may have been sent."""
        if self.stale:
            await self.disconnect(nowait=True)
        if not self.is_connected:
            await self.connect()
        pieces = [command.encode() if isinstance(command, str) else command]
        try:
            async with asyncio.timeout(self.socket_timeout):
                self._writer.writelines(pieces if isinstance(pieces[0], bytes) else command)
                await self._writer.drain()
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise RedisTimeoutError("Timeout writing to socket") from None
        except OSError as exc:
            await self.disconnect(nowait=True)
            raise RedisConnectionError(f"Error while writing to socket: {exc}") from exc
        except BaseException:
            await self.disconnect(nowait=True)
            raise
