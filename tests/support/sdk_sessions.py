"""A plugin for pytest that lets the session tests of the Agents SDK's source distribution use our sessions.

They create ``SQLiteSession``s: here each is an ``AntiphonSession`` on the Redis at ``SESSIONS_REDIS``. Tests of
SQLite itself, recognized by the names in their code, are left out.
"""

import hashlib
import inspect
import os
import re
from typing import Any

import agents
import pytest

from antiphon.ext.openai_agents import AntiphonSession

OF_SQLITE = re.compile(r"sqlite3|session(_\d)?\._|_await_mutation|monkeypatch|closed|\.items_table")


class Session(AntiphonSession):
    """Takes the arguments of ``SQLiteSession``. Each database is a prefix, unique to this run of pytest."""

    def __init__(self, session_id: str, db_path: Any = ":memory:", **options: Any) -> None:
        place = hashlib.sha256(f"{os.getpid()} {db_path}".encode()).hexdigest()[:12]
        super().__init__(session_id, redis=os.environ["SESSIONS_REDIS"], prefix=f"ant-{place}", **options)

    def close(self) -> None:
        """Do nothing: there is no file."""


agents.SQLiteSession = Session


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if OF_SQLITE.search(inspect.getsource(item.function))]  # type: ignore[attr-defined]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
