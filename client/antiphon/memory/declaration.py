"""``Memory``: what an agent recalls, how, and from whose turns."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import msgspec

from antiphon.errors import MissingPackage, UsageError
from antiphon.input.values import is_a

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore


Scope = Literal["session", "agent", "tenant"]


def scope_key(
    prefix: str, name: str, scope: Scope, *, tenant: str | None, agent: str | None, session: str | None
) -> str:
    """Return the text that all turns of one scope share, and no other turn has.

    >>> mine = scope_key("ant", "memory", "tenant", tenant="acme", agent="host", session="s-1")
    >>> mine == scope_key("ant", "memory", "tenant", tenant="acme", agent="other", session="s-2")
    True
    >>> mine == scope_key("ant", "memory", "tenant", tenant="rival", agent="host", session="s-1")
    False
    """
    whose = {"session": session, "agent": agent, "tenant": None}[scope]
    whole = msgspec.json.encode([prefix, name, tenant, scope, whose])
    return hashlib.sha256(whole).hexdigest()[:40]


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class FactModel:
    """The model that extracts lasting facts about a user: ``Memory(…, facts=FactModel("openai", "gpt-4o-mini"))``.

    ``provider`` is one of the App's or a built-in one. ``params`` are sent with each call, and ``instructions`` add
    what to keep or to leave out. At most ``most`` facts are kept in a scope. Redis stores them under ``name``: a
    memory that replaces another one keeps its facts if both fact models have the same name.

    Raises ``UsageError``.

    >>> from antiphon.memory import FactModel, Memory, WordEmbeddings
    >>> facts = FactModel("scripted", "any", instructions="Keep diets and allergies.")
    >>> memory = Memory("recollections", WordEmbeddings(), scope="tenant", facts=facts)
    """

    def __init__(
        self,
        provider: str,
        model: str,
        *,
        name: str = "memory",
        instructions: str = "",
        params: Mapping[str, Any] | None = None,
        most: int = 100,
    ) -> None:
        for option, value in (("provider", provider), ("model", model)):
            if not is_a(value, str) or not value:
                raise UsageError(f"{option}= must be a name, not {value!r}.")
        if not is_a(most, int) or not 1 <= most <= 1000:
            raise UsageError(f"most= must be a number from 1 to 1000, not {most!r}.")
        self.provider, self.model, self.most = provider, model, most
        self.name = checked_fact_name(name)
        self.instructions = instructions
        self.params: dict[str, Any] = dict(params or {})


def checked_fact_name(name: Any) -> str:
    """Check the name of a fact model. Raises ``UsageError``."""
    if not is_a(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"name= must be 1 to 64 letters, digits, '_', '.' and '-', not {name!r}.")
    return name


def fact_cursor(name: str) -> str:
    """Return the name under which turns wait for the extraction of facts. No memory can have this name."""
    return f"+{name}"


class Memory:
    """What an agent recalls of earlier turns. Pass it to ``Agent(memory=…)`` or ``App(memory=…)``.

    After a turn of the agent's sessions has finished, a worker embeds it and writes it to ``store``. ``store`` is a
    ``VectorStore`` of LangChain, which has its own embeddings, or a folder for a ``FaissStore``; a folder needs
    ``embeddings``, an ``Embeddings`` of LangChain.

    ``scope`` decides what a turn recalls: turns of its own ``"session"``, of all sessions of its ``"agent"``, or of
    all sessions of its ``"tenant"`` whose agents have a memory of this ``name``. It never recalls turns of another
    tenant; sessions without a tenant recall each other's. So give each user a tenant before you choose a wider scope
    than ``"session"``.

    ``recall="tool"`` offers the model a tool ``recall(query)``; ``"start"`` searches once with the turn's input and
    shows the model the result with that input. Both show at most ``count`` chunks and about ``tokens`` tokens. If the
    store does not answer within ``timeout`` seconds, the turn continues without it.

    ``filter`` is for stores whose filters differ from the usual form: a function from the value of the metadata field
    ``scope`` to what the store takes as ``filter=``. ``replaces`` is the memory, under another name, that this one
    replaces: it is searched instead until everything in it has been copied here.

    With encryption keys, documents are encrypted. A folder does this by itself; create any other store with
    ``SealedEmbeddings(embeddings)``.

    ``facts`` is a ``FactModel``, which extracts facts from the same turns, in the same scope. They are shown with the
    chunks, in at most half of the tokens.

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
        """Return the text that all documents of a turn's scope share, and no other document has.

        >>> memory.scope_key("ant", "acme", "host", "s-1") == memory.scope_key("ant", "acme", "host", "s-2")
        True
        >>> memory.scope_key("ant", "acme", "host", "s-1") == memory.scope_key("ant", "other", "host", "s-1")
        False
        """
        return scope_key(
            prefix, name or self.name, self.scope, tenant=tenant, agent=agent, session=session_id
        )


def checked_memory(memory: Any) -> Memory | None:
    """Check the value of ``memory=``. Raises ``UsageError``."""
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
            raise UsageError("The store already has embeddings: omit embeddings=.")
        return store
    if not isinstance(store, str | os.PathLike):
        raise UsageError(f"store= must be a VectorStore of LangChain or a folder, not {store!r}.")
    if embeddings is None:
        raise UsageError("With a folder as store=, also pass embeddings=.")
    from antiphon.memory.faiss_store import FaissStore
    from antiphon.memory.sealed import SealedEmbeddings

    return FaissStore(os.fspath(cast("str | os.PathLike[str]", store)), SealedEmbeddings(embeddings))
