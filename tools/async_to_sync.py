"""Generates the synchronous forms of the client's classes from the asynchronous ones: ``make sync``.

``AsyncSession``, ``AsyncClient`` and the others are written by hand, with their documentation and examples. This tool
reads their syntax trees and writes ``Session``, ``Client`` and so on: the same methods with the same signatures, types
and texts, which run the coroutine on the background loop. Keywords that the asynchronous form takes as
``**options: Unpack[RunOptions]`` are written out one by one, so that ``help()`` and notebooks show them.

``python tools/async_to_sync.py --check`` only compares, and fails if a generated file is not current.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "client"
OPEN = {"ModelParams"}  # not expanded: a model may take parameters that are not listed
EXPLAINED = {"ClientSubmitOptions"}  # the asynchronous form explains what to write in place of other keywords


@dataclass(frozen=True)
class Form:
    """A class to generate. ``held`` is the type it wraps, if that is wider than the class it is generated from."""

    module: str
    name: str
    twins: bool = False  # it also has each coroutine as …_async
    properties: dict[str, str] = field(default_factory=dict[str, str])  # their types where they differ
    held: tuple[str, str] | None = None
    bases: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    note: str = ""  # added to the documentation of the synchronous form

    @property
    def made(self) -> str:
        return self.name.removeprefix("Async")


PROPERTIES = ["messages", "branch", "tenant", "queue", "files", "system", "usage", "cost", "parent"]
SESSION = Form(
    "antiphon.session.async_session",
    "AsyncSession",
    twins=True,
    properties=dict.fromkeys(PROPERTIES, "") | {"variables": "Variables", "metadata": "Metadata"},
)
TURN = Form(
    "antiphon.redis.turn",
    "AsyncTurn",
    held=("antiphon.session.runtime", "TurnHandle"),
    bases=(("antiphon.session.turn_info", "TurnProperties"),),
    hidden=("ended",),
    note="Each property from ``input`` to ``cost`` reads the turn again, which costs a round trip.",
)
ASYNC_CLIENT = Form(
    "antiphon.async_client",
    "AsyncClient",
    note="For scripts, threads, web views, notebooks and forked servers. ``close()`` or ``with`` closes its "
    "connections.",
)
FILES = {
    "antiphon/session/turn.py": (TURN,),
    "antiphon/session/session.py": (SESSION, Form("antiphon.session.listing", "AsyncSessionList")),
    "antiphon/sync_client.py": (
        ASYNC_CLIENT,
        Form("antiphon.redis.agents", "AsyncAgents"),
        Form("antiphon.redis.facts", "AsyncFacts"),
        Form("antiphon.redis.budgets", "AsyncBudgets"),
        Form("antiphon.redis.schedules", "AsyncSchedules"),
        Form("antiphon.redis.webhooks", "AsyncWebhooks"),
    ),
}
MADE = {form.name: form.made for forms in FILES.values() for form in forms}
MADE |= {"TurnHandle": "Turn", "AsyncEventStream": "EventStream"}
HOMES = {
    form.made: path.removesuffix(".py").replace("/", ".") for path, forms in FILES.items() for form in forms
} | {"Variables": "antiphon.session.variables", "Metadata": "antiphon.session.variables"}
# The synchronous types of these results.
RESULTS = {
    "TurnEvents": "Iterator[Event]", "Subscription": "Iterator[Event]", "AllEvents": "Iterator[FollowedEvent]",
    "SessionId": "str", "TurnId": "str",
}  # fmt: skip
NAMES = MADE | {
    "aclose": "close", "anext": "next", "aiter": "iter", "StopAsyncIteration": "StopIteration",
    "session_async": "session", "sessions_async": "sessions",
}  # fmt: skip
SHARED = "antiphon.session.synchronous"
GIVEN = {  # the modules of the names that generated code uses
    **dict.fromkeys(("LEFT_OUT", "Synchronous", "asynchronous", "given", "made"), SHARED),
    **dict.fromkeys(("call", "iterate"), "antiphon.session.background"),
    **dict.fromkeys(("Never", "Self"), "typing"),
    "Event": "antiphon.events",
    "EventStream": "antiphon.session.streams",
    "FollowedEvent": "antiphon.redis.all_events",
    "Iterator": "collections.abc",
}


# Reading.


@cache
def tree_of(module: str) -> ast.Module:
    path = CLIENT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text())


@cache
def scope_of(module: str) -> dict[str, str]:
    """Return the names at a module's top level, with the modules they come from."""
    found: dict[str, str] = {}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.name: node.module for alias in node.names if alias.asname is None}
    for node in tree_of(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = module
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: module for target in targets if isinstance(target, ast.Name)}
    return found


def class_of(module: str, name: str) -> ast.ClassDef:
    return next(one for one in tree_of(module).body if isinstance(one, ast.ClassDef) and one.name == name)


@dataclass
class Keywords:
    """The keywords of a ``TypedDict``, each with its type and module; ``open`` is the ``TypedDict`` not expanded."""

    named: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    open: tuple[str, str] | None = None


def keywords_of(module: str, name: str) -> Keywords:
    found = Keywords()
    module = scope_of(module).get(name, module)
    if name in OPEN:
        return Keywords(open=(name, module))
    for base in class_of(module, name).bases:
        if isinstance(base, ast.Name) and base.id != "TypedDict":
            more = keywords_of(module, base.id)
            found.named |= more.named
            found.open = found.open or more.open
    for line in class_of(module, name).body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found.named[line.target.id] = (plain(line.annotation), module)
    return found


def plain(annotation: ast.expr) -> str:
    """Return the type without ``Annotated[…]``, ``Required[…]`` or ``NotRequired[…]`` around it."""
    match annotation:
        case ast.Subscript(ast.Name("Annotated" | "NotRequired" | "Required" as kind), inner):
            return plain(inner.elts[0] if kind == "Annotated" and isinstance(inner, ast.Tuple) else inner)
        case _:
            return ast.unparse(annotation)


# Texts.


def sync_doc(text: str, form: Form) -> str:
    """Return the docstring of the synchronous form, without prose about ``await``, ``anext`` or ``async for``."""
    paragraphs = re.split(r"\n\s*\n", text)
    kept = [one for one in paragraphs if ">>>" in one or not re.search(r"await|anext|async for", one)]
    return "\n\n".join(sync_example(one, form) if ">>>" in one else renamed(one) for one in kept)


def renamed(text: str) -> str:
    return re.sub(
        r"\b(" + "|".join(sorted(NAMES, key=len, reverse=True)) + r")\b", lambda one: NAMES[one[0]], text
    )


def sync_example(text: str, form: Form) -> str:
    """Return an example without ``await`` and ``async``. ``(await x).y`` becomes ``x.y``."""
    lines: list[str] = []
    for line in text.splitlines():
        prompt = re.match(r"\s*(>>>|\.\.\.) ?", line)
        lines.append(line if prompt is None else prompt[0] + without_await(line[prompt.end() :]))
    found = renamed("\n".join(lines))
    if properties := "|".join(form.properties):
        found = re.sub(rf"\.({properties})\(\)", r".\1", found)
    return found


def without_await(line: str) -> str:
    while found := re.search(r"\(await ", line):
        end = closing(line, found.start())
        inner = line[found.end() : end]
        called = re.search(r"[\w\])]$", line[: found.start()])
        keep = called is not None or not isinstance(ast.parse(f"await {inner}", mode="eval").body, ast.Await)
        line = line[: found.start()] + (f"({inner})" if keep else inner) + line[end + 1 :]
    return re.sub(r"\b(await|async) ", "", line)


def closing(line: str, start: int) -> int:
    """Return the index of the parenthesis that closes the one at ``start``."""
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(line[start:]).readline):
        depth += {"(": 1, ")": -1}.get(token.string, 0)
        if depth == 0:
            return start + token.start[1]
    raise SyntaxError(line)


def quoted(text: str) -> str:
    return f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'


# Writing.


class Writer:
    """Writes the class of one form, and collects what it imports."""

    def __init__(self, form: Form, imports: dict[str, str]) -> None:
        self.form, self.imports = form, imports
        self.scope = scope_of(form.module)

    def source(self) -> str:
        form, cls = self.form, class_of(self.form.module, self.form.name)
        held = form.held or (form.module, form.name)
        bases = [f"Synchronous[{held[1]}]", *(name for _, name in form.bases)]
        self.imports |= {name: module for module, name in (held, *form.bases)} | {"Synchronous": SHARED}
        doc = sync_doc(ast.get_docstring(cls) or "", form)
        body = [quoted(doc.replace("\n\n", f"\n\n{form.note}\n\n", 1) if form.note else doc)]
        for base in cls.bases:
            if isinstance(base, ast.Name) and (module := scope_of(form.module).get(base.id)):
                body += self.methods(class_of(module, base.id), module)
        body += self.methods(cls, form.module)
        return f"class {form.made}({', '.join(bases)}):\n" + textwrap.indent("\n\n".join(body), "    ")

    def methods(self, cls: ast.ClassDef, module: str) -> Iterator[str]:
        self.scope = scope_of(module)
        for node in cls.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self.members(node)

    def members(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
        name = node.name
        match name:
            case "__init__" if self.form.made == "Client":
                yield self.method(
                    node,
                    "__init__",
                    "super().__init__({inner}({args}))\nself._async.connections.background = True",
                )
            case "__aenter__":
                self.imports["Self"] = "typing"
                yield "def __enter__(self) -> Self:\n    return self"
                yield "def __exit__(self, *_: object) -> None:\n    self.close()"
            case "__aiter__":
                found = self.iterated("aiter(self._async)", node.returns)
                yield f"def __iter__(self) -> {self.type(node.returns)}:\n    return {found}"
            case "__repr__":
                yield ast.unparse(node)
            case _ if name.startswith("_") or name in self.form.hidden:
                return
            case _:
                yield from self.public(node)

    def public(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
        name, decorators = node.name, {ast.unparse(one) for one in node.decorator_list}
        returns = ast.unparse(node.returns) if node.returns else "None"
        if "property" in decorators:
            yield self.method(node, name, f"return self._async.{name}", decorator="property")
        elif "classmethod" in decorators:
            yield self.method(
                node, name, f"return {self.form.made}({{inner}}.{name}({{args}}))", decorator="classmethod"
            )
        elif isinstance(node, ast.AsyncFunctionDef) and "AsyncGenerator" not in returns:
            yield from self.coroutine(node)
        elif returns in MADE:
            yield self.method(
                node, name, f"return {self.wrapped(f'self._async.{name}({{args}})', node.returns)}"
            )
            if self.form.twins and returns not in HOMES and returns != self.form.name:
                yield self.twin(node, f"return self._async.{name}({{args}})", returns)
        elif returns == "str":
            yield self.method(node, name, f"return self._async.{name}({{args}})")
        else:
            made = f"self._async.{name}({{args}})"
            if self.form.made == "Client" and returns in RESULTS:
                made = self.use("made", f"made(lambda: {made})")
            yield self.method(node, name, f"return {self.iterated(made, node.returns, name)}")

    def coroutine(self, node: ast.AsyncFunctionDef) -> Iterator[str]:
        name, of = node.name, self.form
        direct = f"self._async.{name}({{args}})"
        returns = ast.unparse(node.returns) if node.returns else "None"
        if of.twins:
            own = returns == of.name
            awaited = f"return {of.made}(await {direct})" if own else f"return await {direct}"
            direct = f"self.{name}_async({{twin}})"
            result = self.use("call", f"call({direct})")
            result = result if own else self.wrapped(result, node.returns)
        else:
            awaited, result = "", self.wrapped(self.use("call", f"call({direct})"), node.returns)
        returned = of.properties.get(name)
        if returned:
            result = self.use(returned, f"{returned}({result}, self.set_{name})")
        body = result if returns == "None" else f"return {result}"
        yield self.method(
            node, name.removeprefix("a") if name == "aclose" else name, body,
            decorator="property" if name in of.properties else "", returns=returned or "",
        )  # fmt: skip
        if awaited:
            yield self.twin(node, awaited if returns != "None" else awaited.removeprefix("return "), "")

    def twin(self, node: ast.FunctionDef | ast.AsyncFunctionDef, body: str, returns: str) -> str:
        """Return the method as …_async."""
        if returns:
            self.use_all(returns, self.scope)
        own = returns or (
            ""
            if ast.unparse(node.returns or ast.Constant(None)) == self.form.name
            else ast.unparse(node.returns or ast.Constant(None))
        )
        if own:
            self.use_all(own, self.scope)
        return self.method(
            node, f"{node.name}_async", body, returns=own, awaited=isinstance(node, ast.AsyncFunctionDef)
        )

    def method(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, body: str, *,
        decorator: str = "", returns: str = "", awaited: bool | None = None,
    ) -> str:  # fmt: skip
        """Return a method with the same parameters. ``{args}`` in its body passes them on."""
        doc = ast.get_docstring(node) or ""
        if awaited is None:
            doc = sync_doc(doc, self.form)
        else:
            prose = [one for one in re.split(r"\n\s*\n", doc) if ">>>" not in one]
            doc = "\n\n".join(
                [
                    f"``{node.name}``, awaited." if awaited else f"``{node.name}``, for ``async for``.",
                    *map(renamed, prose),
                ]
            )
        signature, args, twin = self.parameters(node, cls=decorator == "classmethod")
        returns = returns or self.type(node.returns)
        lines = body.replace("{inner}", self.form.name).replace("{args}", args).replace("{twin}", twin)
        head = f"@{decorator}\n" if decorator else ""
        head += f"{'async ' if awaited else ''}def {name}({signature}) -> {returns}:\n"
        return head + textwrap.indent((quoted(doc) + "\n" if doc else "") + lines, "    ")

    def parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef, *, cls: bool) -> tuple[str, str, str]:
        """Return the parameters as declared, as passed on, and as passed to the twin."""
        given = node.args
        shown, handed, twin = ["cls" if cls else "self"], list[str](), list[str]()
        defaults = [None] * (len(given.args) - len(given.defaults)) + [*given.defaults]
        for arg, default in list(zip(given.args, defaults, strict=True))[1:]:
            shown.append(self.parameter(arg, default))
            handed.append(self.handed(arg))
            twin.append(arg.arg)
        if given.vararg:
            shown.append("*" + self.parameter(given.vararg, None))
            handed.append(f"*{given.vararg.arg}")
            twin.append(f"*{given.vararg.arg}")
        elif given.kwonlyargs or given.kwarg:
            shown.append("*")
        for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            shown.append(self.parameter(arg, default))
            handed.append(f"{arg.arg}={self.handed(arg)}")
            twin.append(f"{arg.arg}={arg.arg}")
        if given.kwarg:
            keywords = self.keywords(given.kwarg)
            for name, (kind, module) in keywords.named.items():
                self.use_all(kind, scope_of(module))
                shown.append(f"{name}: {self.use('LEFT_OUT', kind)} = LEFT_OUT")
            pairs = [f"{name}={name}" for name in keywords.named]
            if keywords.open:
                shown.append(f"**params: Unpack[{keywords.open[0]}]")
                self.imports |= {"Unpack": "typing", keywords.open[0]: keywords.open[1]}
                pairs.append("**params")
            elif (
                ast.unparse(given.kwarg.annotation or ast.Constant(None)).removeprefix("Unpack[")[:-1]
                in EXPLAINED
            ):
                shown.append(self.use("Never", "**unknown: Never"))
                pairs.append("**unknown")
            handed.append(self.use("given", f"**given({', '.join(pairs)})"))
            twin += pairs
        return (
            ", ".join(one for one in shown if one != "*" or shown[-1] != "*"),
            ", ".join(handed),
            ", ".join(twin),
        )

    def keywords(self, arg: ast.arg) -> Keywords:
        match arg.annotation:
            case ast.Subscript(ast.Name("Unpack"), ast.Name(name)):
                return keywords_of(self.form.module, name)
            case _:
                raise SyntaxError(f"**{arg.arg} needs a type: Unpack[…]")

    def parameter(self, arg: ast.arg, default: ast.expr | None) -> str:
        text = f"{arg.arg}: {self.type(arg.annotation)}"
        if default is not None:
            self.use_all(ast.unparse(default), self.scope)
            text += f" = {ast.unparse(default)}"
        return text

    def handed(self, arg: ast.arg) -> str:
        if arg.annotation is not None and any(name in ast.unparse(arg.annotation) for name in MADE):
            return self.use("asynchronous", f"asynchronous({arg.arg})")
        return arg.arg

    def wrapped(self, value: str, returns: ast.expr | None) -> str:
        """Return the result of a call in its synchronous form."""
        text = ast.unparse(returns) if returns else ""
        if text in MADE:
            return self.use(MADE[text], f"{MADE[text]}({value})")
        name = next((one for one in MADE if re.search(rf"\b{one}\b", text)), None)
        if name is None:
            return value
        self.use_all(name, self.scope)
        return self.use(
            MADE[name], f"[{MADE[name]}(one) if isinstance(one, {name}) else one for one in {value}]"
        )

    def iterated(self, value: str, returns: ast.expr | None, method: str = "") -> str:
        text = ast.unparse(returns) if returns else ""
        instead = f"{self.form.name}.{method}" if method else self.form.name
        found = self.use("iterate", f'iterate({value}, instead="{instead}")')
        name = next((one for one in MADE if re.search(rf"\b{one}\b", text)), None)
        return found if name is None else self.use(MADE[name], f"({MADE[name]}(one) for one in {found})")

    def type(self, annotation: ast.expr | None) -> str:
        """Return the annotation of the synchronous form."""
        text = ast.unparse(annotation) if annotation else "None"
        text = re.sub(r"\bAsyncGenerator\[(.*), None\]", r"Iterator[\1]", text)
        text = re.sub(r"\bAsyncIterator\[", "Iterator[", text)
        text = RESULTS.get(text, text)
        for name, made in MADE.items():
            text = re.sub(rf"\b{name}\b", made, text)
        self.use_all(text, self.scope)
        return text

    def use(self, name: str, text: str) -> str:
        """Import a name that the generated code uses, and return the code."""
        self.use_all(name, {})
        return text

    def use_all(self, code: str, scope: dict[str, str]) -> None:
        for node in ast.walk(ast.parse(code, mode="eval")):
            if isinstance(node, ast.Name) and (
                module := HOMES.get(node.id) or GIVEN.get(node.id) or scope.get(node.id)
            ):
                self.imports[node.id] = module


def generated(path: str, forms: tuple[Form, ...]) -> str:
    """Return the text of a generated file."""
    imports: dict[str, str] = {}
    classes = [Writer(form, imports).source() for form in forms]
    own = path.removesuffix(".py").replace("/", ".")
    names = {form.name: form.module for form in forms if form.held is None}
    lines = [f"from {module} import {name}" for name, module in (imports | names).items() if module != own]
    modules = [*dict.fromkeys(form.module.removeprefix("antiphon.").replace(".", "/") for form in forms)]
    made_from = ", ".join(modules) if len(modules) <= 4 else f"{modules[0]} and the modules that it returns"
    made = " and ".join(
        filter(None, (", ".join(f"``{one.made}``" for one in forms[:-1]), f"``{forms[-1].made}``"))
    )
    head = f"# Generated by tools/async_to_sync.py from {made_from}; do not edit.\n"
    head += f'"""{made}: synchronous, and generated."""\n'
    text = (
        head
        + "\nfrom __future__ import annotations\n\n"
        + "\n".join(sorted(lines))
        + "\n\n\n"
        + "\n\n\n".join(classes)
        + "\n"
    )
    return ruffed(text, CLIENT / path)


def ruffed(text: str, path: Path) -> str:
    """Return the text formatted by ruff, with sorted imports."""
    for command in (
        ["check", "--fix", "--exit-zero", "--quiet", "--select=I,UP,F401"],
        ["format", "--quiet"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command, f"--stdin-filename={path}", "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main(arguments: list[str]) -> int:
    """Write the generated files, or with ``--check`` print the names of the stale ones."""
    stale = [
        path
        for path, forms in FILES.items()
        if not (CLIENT / path).exists() or (CLIENT / path).read_text() != generated(path, forms)
    ]
    for path in stale:
        if "--check" in arguments:
            print(f"client/{path} is not current: run make sync", file=sys.stderr)
        else:
            (CLIENT / path).write_text(generated(path, FILES[path]))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
