"""``Memory``: what an agent recalls, how, and of whom."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from antiphon.errors import MissingPackage, UsageError
from antiphon.input.values import is_a
from antiphon.memory.fact_model import FactModel
from antiphon.memory.scopes import Scope, scope_key

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore

__all__ = ["Memory", "Scope", "checked_memory"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Memory:
    """What an agent recalls of earlier turns. Pass it to ``Agent(memory=…)`` or ``App(memory=…)``.

    Workers embed every finished turn of the agent's sessions and write it to ``store``, after the turn has ended.
    ``store`` is a ``VectorStore`` of LangChain, or a folder for a ``FaissStore``; a folder needs ``embeddings``, an
    ``Embeddings`` of LangChain. A store of LangChain has its own.

    ``scope`` says what a turn recalls: turns of its own ``"session"``, of all sessions of its ``"agent"``, or of all
    sessions of its ``"tenant"`` whose agents have a memory of this ``name``. It never recalls turns of another tenant;
    sessions without a tenant recall each other's. So give each user a tenant before you choose a wider scope than
    ``"session"``.

    ``recall="tool"`` offers the model a tool ``recall(query)``; ``"start"`` looks once for what fits the turn's input,
    and shows it to the model beside that input. Both show ``count`` passages at most, and about ``tokens`` tokens. A
    store that does not answer within ``timeout`` seconds is left out of the turn.

    ``filter`` says how the store is asked for the documents of a scope, for stores of another form than most: a
    function from the value of the metadata field ``scope`` to what the store takes as ``filter=``. ``replaces`` is the
    memory that this one takes the place of, under another name: it is asked until all that it holds is here as well.

    ``facts`` is a ``FactModel``, which distils facts from the same turns, in the same scope. They are shown with the
    passages, in at most half of the tokens.

    Raises ``UsageError``, and ``MissingPackage`` without ``antiphon[memory]``.

    >>> from antiphon import Agent
    >>> from antiphon.memory import Memory, WordEmbeddings
    >>> memory = Memory("recollections", WordEmbeddings(), scope="tenant", recall="start")
    >>> agent = Agent(provider="scripted", model="any", name="host", memory=memory)
    """

    def __init__(
        self,
        store: VectorStore | str | os.PathLike[str],
        embeddings: Embeddings | None = None,
        *,
        name: str = "memory",
        scope: Scope = "session",
        recall: Literal["tool", "start"] = "tool",
        count: int = 5,
        tokens: int = 1000,
        timeout: float = 2.0,
        filter: Callable[[str], Any] | None = None,  # noqa: A002 - the word of LangChain
        replaces: Memory | None = None,
        facts: FactModel | None = None,
    ) -> None:
        if not is_a(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"name= must be 1 to 64 letters, digits, '_', '.' and '-', not {name!r}.")
        if scope not in get_args(Scope):
            raise UsageError(f'scope= must be "session", "agent" or "tenant", not {scope!r}.')
        if recall not in ("tool", "start"):
            raise UsageError(f'recall= must be "tool" or "start", not {recall!r}.')
        for option, value in (("count", count), ("tokens", tokens), ("timeout", timeout)):
            if not is_a(value, int | float) or not value > 0:
                raise UsageError(f"{option}= must be a positive number, not {value!r}.")
        if replaces is not None and (not is_a(replaces, Memory) or replaces.name == name):
            raise UsageError("replaces= must be a Memory of another name.")
        if facts is not None and not is_a(facts, FactModel):
            raise UsageError(f"facts= must be a FactModel, not {facts!r}.")
        self.name: str = name
        self.scope: Scope = scope
        self.recall = recall
        self.count, self.tokens, self.timeout = count, tokens, timeout
        self.filter, self.replaces, self.facts = filter, replaces, facts
        self.store: Any = _store(store, embeddings)

    def __repr__(self) -> str:
        return f"Memory({type(self.store).__name__}, name={self.name!r}, scope={self.scope!r})"

    def scope_key(
        self, prefix: str, tenant: str | None, agent: str | None, session_id: str, *, name: str | None = None
    ) -> str:
        """Return the text that all documents of a turn's scope have in common, and no others.

        >>> memory.scope_key("ant", "acme", "host", "s-1") == memory.scope_key("ant", "acme", "host", "s-2")
        True
        >>> memory.scope_key("ant", "acme", "host", "s-1") == memory.scope_key("ant", "other", "host", "s-1")
        False
        """
        return scope_key(
            prefix, name or self.name, self.scope, tenant=tenant, agent=agent, session=session_id
        )


def checked_memory(memory: Any) -> Memory | None:
    """Check what ``memory=`` was given. Raises ``UsageError``."""
    if memory is not None and not is_a(memory, Memory):
        raise UsageError(f"memory= must be a Memory, not {memory!r}.")
    return memory


def _store(store: Any, embeddings: Any) -> Any:
    try:
        from langchain_core.embeddings import Embeddings
        from langchain_core.vectorstores import VectorStore
    except ImportError as exc:
        raise MissingPackage("Memory needs LangChain's interfaces: pip install 'antiphon[memory]'.") from exc
    if embeddings is not None and not is_a(embeddings, Embeddings):
        raise UsageError(f"embeddings= must be an Embeddings of LangChain, not {embeddings!r}.")
    if is_a(store, VectorStore):
        if embeddings is not None and store.embeddings is not embeddings:
            raise UsageError("The store has embeddings of its own: leave embeddings= out.")
        return store
    if not isinstance(store, str | os.PathLike):
        raise UsageError(f"store= must be a VectorStore of LangChain or a folder, not {store!r}.")
    if embeddings is None:
        raise UsageError("A folder as store= needs embeddings=.")
    from antiphon.memory.faiss_store import FaissStore

    return FaissStore(os.fspath(cast("str | os.PathLike[str]", store)), embeddings)
