"""Memories for tests: stores that fail, and the contents of a memory."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from antiphon.agent import Agent
from antiphon.memory import FaissStore, Memory, WordEmbeddings
from antiphon_worker.app import App


class FailingStore(FaissStore):
    """``failing``: all writes fail. ``refuses``: writes with this word fail. ``gate``: writes wait for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, WordEmbeddings())
        self.failing = False
        self.error: BaseException = ConnectionError("the store is away")
        self.refuses = ""
        self.written: list[str] = []
        self.gate: asyncio.Event | None = None
        self.reached = asyncio.Event()

    def add_texts(self, texts: Iterable[str], *args: Any, **options: Any) -> list[str]:
        contents = list(texts)
        if self.failing or (self.refuses and any(self.refuses in text for text in contents)):
            raise self.error
        self.written += contents
        return super().add_texts(contents, *args, **options)

    async def aadd_documents(self, documents: Any, **options: Any) -> list[str]:
        if self.gate is not None:
            self.reached.set()
            await self.gate.wait()
        return await super().aadd_documents(documents, **options)


def host(memory: Memory, **options: Any) -> Agent:
    return Agent(**{"provider": "scripted", "model": "any", "name": "host", "memory": memory, **options})


def app_with(memory: Memory, **options: Any) -> App:
    return App(agents=[host(memory, **options)])


def passages_in(memory: Memory) -> list[str]:
    """Return the texts in a FaissStore."""
    with memory.store._open() as database:
        return [row[0] for row in database.execute("SELECT text FROM documents WHERE text IS NOT NULL")]
