"""Servers of the Model Context Protocol (MCP) whose tools agents use.

>>> from antiphon import Agent
>>> from antiphon.mcp import MCP
>>> files = MCP.stdio("npx -y @modelcontextprotocol/server-filesystem /data", name="files", tools=["read_file"])
>>> agent = Agent("scripted", "any", mcp=[files])
>>> agent.mcp
[MCP.stdio('npx -y @modelcontextprotocol/server-filesystem /data', name='files')]
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shlex
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.errors import AgentError, MissingPackage, UsageError
from antiphon.input.values import duration, is_a
from antiphon.model import AtLimit, CallerTool
from antiphon.tools.approval import ApprovalRule, check_at_limit

__all__ = ["MCP", "Requester"]

BETWEEN = "__"
LONGEST_TOOL_NAME = 64
_NAME = re.compile(r"[a-zA-Z0-9-]{1,24}")
_UNUSABLE = re.compile(r"[^a-zA-Z0-9_-]")


class Requester(Struct, frozen=True):
    """The user for whom a server is called, as ``auth=`` receives it. ``tenant`` and ``user`` may be None.

    >>> Requester("acme", "ada", "github").user
    'ada'
    """

    tenant: str | None
    user: str | None
    server: str


Credentials: TypeAlias = str | Mapping[str, str] | None
Auth: TypeAlias = Callable[[Requester], Credentials | Awaitable[Credentials]]
Some: TypeAlias = bool | Iterable[str]


class MCP(Struct, frozen=True, eq=False, repr_omit_defaults=True):
    """A Model Context Protocol server for ``App(mcp=…)`` or ``Agent(mcp=…)``. Create it with ``http`` or ``stdio``.

    ``tools`` are the server's tools that agents may use, by their names there; None is all of them. Models know the
    tool ``search`` of the server ``github`` as ``github__search``. ``approval`` determines which calls wait for an
    approval, and ``at_most_once`` which are never started twice: all, or those of some tools, by their names there.
    ``approval_timeout`` and ``approval_at_limit`` are those of ``antiphon.tool``. With ``resources``, models can list
    and read the server's resources, with the tools ``github__list_resources`` and ``github__read_resource``.
    ``timeout`` is the time limit of a call in seconds, and ``connect_timeout`` that of the connection and the list of
    tools.

    >>> files = MCP.stdio("mcp-server-files /data", name="files", tools=["read_file"])
    >>> files.offers("write_file")
    False
    """

    name: str
    url: str = ""
    command: tuple[str, ...] = ()
    auth: Auth | None = None
    headers: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    cwd: str | None = None
    tools: tuple[str, ...] | None = None
    approval: bool | tuple[str, ...] = False
    approval_timeout: float | None = None
    approval_at_limit: AtLimit = "reject"
    at_most_once: bool | tuple[str, ...] = False
    resources: bool = False
    timeout: float | None = None
    connect_timeout: float = 10.0

    @classmethod
    def http(
        cls,
        url: str,
        *,
        name: str,
        auth: Auth | None = None,
        headers: Mapping[str, str] | None = None,
        tools: Iterable[str] | None = None,
        approval: Some = False,
        approval_timeout: float | timedelta | None = None,
        approval_at_limit: AtLimit = "reject",
        at_most_once: Some = False,
        resources: bool = False,
        timeout: float | timedelta | None = None,
        connect_timeout: float | timedelta = 10.0,
    ) -> MCP:
        """Declare a server at an address (streamable HTTP).

        ``auth`` is a function (asynchronous or not) of the ``Requester`` that returns the credentials of this user: a
        token, headers, or None. Workers call it for each call of a tool, and each user has a connection of their own.
        ``headers`` are sent for all users. Raises ``UsageError``.

        >>> MCP.http("https://mcp.example.com/", name="github", auth=lambda requester: tokens[requester.user])
        MCP.http('https://mcp.example.com/', name='github')
        """
        parts = urlsplit(url if is_a(url, str) else "")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise UsageError(
                "url= of an MCP server must begin with http:// or https://, without credentials."
            )
        check_auth(auth)
        common = _common(
            tools,
            approval,
            approval_timeout,
            approval_at_limit,
            at_most_once,
            resources,
            timeout,
            connect_timeout,
        )
        return cls(_name(name), url=url, auth=auth, headers=_texts(headers, "headers"), **common)

    @classmethod
    def stdio(
        cls,
        command: str | Iterable[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        tools: Iterable[str] | None = None,
        approval: Some = False,
        approval_timeout: float | timedelta | None = None,
        approval_at_limit: AtLimit = "reject",
        at_most_once: Some = False,
        resources: bool = False,
        timeout: float | timedelta | None = None,
        connect_timeout: float | timedelta = 10.0,
    ) -> MCP:
        """Declare a server that each worker process starts as a program, for all users.

        ``command`` is the program with its arguments, as text or a list. ``env`` is added to the few variables that
        the program inherits (``PATH``, ``HOME`` and others), and ``cwd`` is its folder. Raises ``UsageError``.

        >>> MCP.stdio(["mcp-server-git", "--repository", "/srv/repo"], name="git", approval=["git_commit"]).name
        'git'
        """
        words = shlex.split(command) if isinstance(command, str) else _names(command, "command")
        if not words:
            raise UsageError("command= of an MCP server must name a program.")
        common = _common(
            tools,
            approval,
            approval_timeout,
            approval_at_limit,
            at_most_once,
            resources,
            timeout,
            connect_timeout,
        )
        return cls(_name(name), command=tuple(words), env=_texts(env, "env"), cwd=cwd, **common)

    def __repr__(self) -> str:
        if self.url:
            return f"MCP.http({self.url.partition('?')[0]!r}, name={self.name!r})"
        return f"MCP.stdio({shlex.join(self.command)!r}, name={self.name!r})"

    def offers(self, tool: str) -> bool:
        """Return whether agents may use this tool of the server.

        >>> files.offers("read_file"), files.offers("write_file")
        (True, False)
        """
        return self.tools is None or tool in self.tools

    def rule(self, tool: str) -> ApprovalRule:
        """Return which calls of this tool wait for an approval.

        >>> files.rule("read_file").rule
        False
        """
        return ApprovalRule(_holds(self.approval, tool), self.approval_timeout, self.approval_at_limit)

    def once(self, tool: str) -> bool:
        """Return whether calls of this tool are never started twice.

        >>> files.once("read_file")
        False
        """
        return _holds(self.at_most_once, tool)

    @property
    def place(self) -> str:
        """The server's name with a hash of its address or command, under which a deployment stores its tools.

        >>> files.place
        'files-ba49e624'
        """
        where = self.url.partition("?")[0] or "\0".join(self.command)
        return f"{self.name}-{hashlib.sha256(where.encode(errors='replace')).hexdigest()[:8]}"

    def described(self) -> dict[str, Any]:
        """Return the server's part of an agent's revision, without its address or command and the tools that it lists.

        >>> files.described()["name"]
        'files'
        """
        return {
            "name": self.name, "tools": self.tools, "timeout": self.timeout, "at_most_once": self.at_most_once,
            "approval": [self.approval, self.approval_timeout, self.approval_at_limit],
            **({"resources": True} if self.resources else {}),
        }  # fmt: skip


def check_auth(auth: object) -> None:
    """Raise ``UsageError`` unless ``auth=`` is a function, or None."""
    if auth is not None and not callable(auth):
        raise UsageError("auth= must be a function of the requester that returns a token, headers or None.")


def tool_name(server: str, tool: str) -> str:
    """Return the name under which models know a tool of a server. Tools of other servers have different names.

    A name that models cannot use is changed, and ends with part of its hash.

    >>> tool_name("github", "search")
    'github__search'
    >>> tool_name("github", "search/code")
    'github__search_code_81e84c'
    """
    beginning = f"{server}{BETWEEN}"
    return beginning + usable_name(tool, LONGEST_TOOL_NAME - len(beginning))


def usable_name(name: str, most: int) -> str:
    """Return a name of up to ``most`` letters, digits, ``_`` and ``-``. Other names are changed, and end with a hash.

    >>> usable_name("search", 40), usable_name("search/code", 40)
    ('search', 'search_code_81e84c')
    """
    usable = _UNUSABLE.sub("_", name)
    if usable == name and 0 < len(name) <= most:
        return name
    return f"{usable[: most - 7]}_{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:6]}"


def server_of(tool: str) -> str:
    """Return the name of the server that a tool of this name would belong to, or ''.

    >>> server_of("github__search"), server_of("refund")
    ('github', '')
    """
    name, between, _ = tool.partition(BETWEEN)
    return name if between else ""


def checked_servers(
    servers: object, tools: Iterable[str] = (), caller_tools: Iterable[CallerTool] = ()
) -> list[MCP | str]:
    """Return the checked servers of an agent: declarations, and names of an App's servers. Raises ``UsageError``.

    ``tools`` are the names of the agent's own tools.
    """
    if isinstance(servers, str | Mapping) or not isinstance(servers, Iterable):
        raise UsageError(f"mcp= must be a list of MCP servers or of their names, not {servers!r}.")
    found: list[MCP | str] = []
    for one in cast("Iterable[Any]", servers):
        if not isinstance(one, MCP):
            _name(one)
        found.append(one)
    names = [name_of(one) for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"mcp= has two servers named {name!r}: give each server a different name.")
    check_no_shadow(names, [*tools, *(one.name for one in caller_tools)], UsageError)
    return found


def check_no_shadow(servers: Collection[str], tools: Iterable[str], error: type[AgentError]) -> None:
    """Raise ``error`` if one of these tools has a name that belongs to one of the servers."""
    for tool in tools:
        if server_of(tool) in servers:
            raise error(
                f"The tool {tool!r} has a name of the MCP server {server_of(tool)!r}: give the tool or the server "
                "another name."
            )


def check_installed() -> None:
    """Raise ``MissingPackage`` if this process cannot call MCP servers."""
    if importlib.util.find_spec("mcp") is None:
        raise MissingPackage("MCP servers need a package: pip install 'antiphon[mcp]'.")


def beginning_of(server: MCP | str) -> str:
    """Return the beginning of the names of a server's tools.

    >>> beginning_of("github")
    'github__'
    """
    return f"{name_of(server)}{BETWEEN}"


def name_of(server: MCP | str) -> str:
    """Return the name of a server, given as a declaration or a name."""
    return server if isinstance(server, str) else server.name


def _name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"The name of an MCP server must be 1 to 24 letters, digits and '-', not {name!r}.")
    return name


def _texts(values: object, what: str) -> dict[str, str]:
    found: dict[Any, Any] = dict(cast("Mapping[Any, Any]", values)) if isinstance(values, Mapping) else {}
    if not (values is None or isinstance(values, Mapping)) or not all(
        isinstance(one, str) for pair in found.items() for one in pair
    ):
        raise UsageError(f"{what}= of an MCP server must be a dictionary of texts.")
    return found


def _names(names: object, what: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    found: list[Any] = list(cast("Iterable[Any]", names)) if isinstance(names, Iterable) else [None]
    if isinstance(names, str) or not all(isinstance(one, str) and one for one in found):
        raise UsageError(f"{what}= of an MCP server must be a list of texts, not {names!r}.")
    return tuple(found)


def _common(
    tools: Iterable[str] | None, approval: Some, approval_timeout: float | timedelta | None,
    approval_at_limit: AtLimit, at_most_once: Some, resources: bool, timeout: float | timedelta | None,
    connect_timeout: float | timedelta,
) -> dict[str, Any]:  # fmt: skip
    """Return the checked options that both kinds of server have. Raises ``UsageError``."""
    if not is_a(resources, bool):
        raise UsageError(f"resources= of an MCP server must be True or False, not {resources!r}.")
    return {
        "tools": _names(tools, "tools"), "approval": _some(approval, "approval"),
        "approval_timeout": duration(approval_timeout, "approval_timeout"),
        "approval_at_limit": check_at_limit(approval_at_limit, "approval_at_limit"),
        "at_most_once": _some(at_most_once, "at_most_once"), "resources": resources,
        "timeout": duration(timeout, "timeout"),
        "connect_timeout": duration(connect_timeout, "connect_timeout") or 10.0,
    }  # fmt: skip


def _some(value: object, what: str) -> bool | tuple[str, ...]:
    return value if isinstance(value, bool) else _names(value, what) or ()


def _holds(which: bool | tuple[str, ...], tool: str) -> bool:
    return which if isinstance(which, bool) else tool in which
