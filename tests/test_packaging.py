"""What `pip install antiphon` brings, and what importing it costs."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
import tomllib
import zipfile
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.source_tree import ROOT, WHEELS, modules, packages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED = re.compile(r'^import .*"(\..+)";$|\bimport\("(\.[^"]+)"\)', re.MULTILINE)
# Modules that need an extra of their own.
A2A = ("answers", "bindings", "card", "errors", "listing", "methods", "parts", "pushes", "tasks")
OTHERS = (
    *(f"antiphon_gateway.a2a.{name}" for name in A2A),
    "antiphon_worker.a2a",
    "antiphon_worker.mcp.",
    "antiphon_gateway.frontends.ag_ui",
    "antiphon_gateway.mcp.questions",
    "antiphon_gateway.mcp.server",
    "antiphon_gateway.mcp.tasks",
    "antiphon_gateway.observing.",
    "antiphon_worker.observing.",
)


def all_of(package: str) -> list[str]:
    """The modules that a program of this package may import at any time."""
    return sorted(
        name for name in modules() if name.partition(".")[0] == package and not name.startswith(OTHERS)
    )


# What each extra brings, imported by those who use it.
EXTRAS = {
    "a2a": [f"antiphon_gateway.a2a.{name}" for name in A2A],
    "ag-ui": ["antiphon_gateway.frontends.ag_ui"],
    "cli": ["antiphon.cli.screen"],
    "demo": ["antiphon_demo.command", "antiphon_demo.valkey", "antiphon_demo.modelserver.__main__"],
    "gateway": all_of("antiphon_gateway"),
    "langchain": ["antiphon.ext.langchain"],
    "langgraph": ["antiphon.ext.langgraph"],
    "llama-index": ["antiphon.ext.llama_index"],
    "memory": ["antiphon.memory.faiss_store", "antiphon.memory.sealed", "antiphon.memory.word_embeddings"],
    "metrics": ["antiphon.metrics"],
    "openai-agents": ["antiphon.ext.openai_agents"],
    "postgres": ["antiphon.stores.postgres"],
    "pydantic-ai": ["antiphon.ext.pydantic_ai"],
    "worker": all_of("antiphon_worker"),
    "worker,a2a": ["antiphon_worker.a2a"],
    "worker,mcp": [name for name in modules() if name.startswith("antiphon_worker.mcp.")],
}
BROUGHT = tuple(name for names in EXTRAS.values() for name in names)
SHARED = {"antiphon.ext.histories", "antiphon.ext.turns"}  # by the adapters


def python(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT).stdout


def imports(statement: str) -> set[str]:
    """The modules that are loaded after this statement."""
    return set(json.loads(python(f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))")))


def top_level_imports(statement: str) -> set[str]:
    """The outside packages that are loaded after this statement."""
    return {name.partition(".")[0] for name in imports(statement)}


@pytest.mark.main_path
def test_importing_the_client_loads_nothing_of_the_worker():
    loaded = top_level_imports("import antiphon")
    assert loaded & (absent_with("") | {"antiphon_gateway", "antiphon_worker"}) == set()
    assert "antiphon" in loaded


@pytest.mark.main_path
def test_a_worker_process_loads_what_it_runs_and_nothing_else():
    unneeded = {"anthropic", "openai", "pydantic", "rq", "sqlite3"}
    ours = {"async_client", "sync_client", "session.session", "redis.erasure", "stores.sqlite"}
    unneeded |= {f"antiphon.{name}" for name in ours} | {"antiphon_worker.supervisor.supervisor"}
    assert imports("import antiphon_worker.__main__") & unneeded == set()
    assert imports("import antiphon_worker.supervisor.supervisor, antiphon.client, sqlite3") & unneeded


def distributions_of(extra: str) -> set[str]:
    """The distributions that ``antiphon[extra]`` installs, as their own metadata say. '' is no extra."""
    found: set[tuple[str, str]] = set()
    left = [("antiphon", ""), *(("antiphon", one) for one in extra.split(","))]
    while left:
        name, own_extra = one = left.pop()
        if one in found:
            continue
        found.add(one)
        try:
            required = requires(name) or ()
        except PackageNotFoundError:  # for another platform
            continue
        for wanted in map(Requirement, required):
            if wanted.marker is None or wanted.marker.evaluate({"extra": own_extra}):
                left += [(canonicalize_name(wanted.name), more) for more in ("", *wanted.extras)]
    return {name for name, _ in found}


def absent_with(extra: str) -> set[str]:
    """The packages that are installed here, and would not be with this extra alone."""
    there = distributions_of(extra)
    absent = {
        package
        for package, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & there
    }
    assert len(absent) > 50
    return absent - {"_distutils_hack"}  # a file at the start of Python imports it


def import_with(extra: str, names: list[str]) -> str:
    """Import modules as in an environment with this extra alone. Return what fails."""
    absent = absent_with(extra)
    return python(
        f"""
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Absent())
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as exc:
        print(f"{{name}}: {{exc}}")
"""
    )


def test_no_module_of_the_client_needs_more_than_it_is_installed_with():
    names = [name for name in modules() if name.partition(".")[0] == "antiphon"]
    assert import_with("", sorted(name for name in names if not name.startswith(BROUGHT))) == ""


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_suffices_for_what_it_brings(extra):
    assert import_with(extra, EXTRAS[extra]) == ""


def test_each_adapter_is_an_extra():
    adapters = {".".join(name.split(".")[:3]) for name in modules() if name.startswith("antiphon.ext.")}
    assert adapters - SHARED == {name for name in BROUGHT if ".ext." in name}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheel of each distribution, by its name."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory]
    command += [ROOT / folder for folder, _ in WHEELS.values()]
    built = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if built.returncode and "hatchling" in built.stderr and "No matching distribution" in built.stderr:
        pytest.skip("the build backend cannot be fetched from here")
    assert built.returncode == 0, built.stderr
    with ExitStack() as stack:
        yield {
            path.name.partition("-")[0].replace("_", "-"): stack.enter_context(zipfile.ZipFile(path))
            for path in directory.glob("*.whl")
        }


@pytest.fixture(scope="module")
def wheel(wheels):
    return wheels["antiphon"]


@pytest.mark.short
@pytest.mark.timeout(300)
@pytest.mark.parametrize("distribution", WHEELS)
def test_a_wheel_holds_all_packages_and_all_that_they_read(wheels, distribution):
    names = set(wheels[distribution].namelist())
    sources = [path for package in packages(distribution) for path in package.rglob("*") if path.is_file()]
    wanted = {
        path.relative_to(ROOT / path.relative_to(ROOT).parts[0]).as_posix()
        for path in sources
        if path.suffix in (".py", ".lua", ".html", ".css", ".js", ".svg", ".jsonl", ".tpl")
        or path.name == "py.typed"
    }
    some = {
        "antiphon": {
            "antiphon/py.typed",
            "antiphon_gateway/py.typed",
            "antiphon_gateway/page/static/index.html",
            "antiphon_gateway/page/static/reading/api.js",
            "antiphon_worker/py.typed",
            "antiphon/wire/lua/claim.lua",
        },
        "antiphon-demo": {"antiphon_demo/py.typed", "antiphon_demo/conversations.jsonl"},
    }
    assert some[distribution] <= wanted
    assert wanted - names == set()
    assert ("antiphon/docs/quickstart.md" in names) == (distribution == "antiphon")
    for name in names:
        if "/page/static/" in name and name.endswith(".js"):
            for found in re.finditer(IMPORTED, wheels[distribution].read(name).decode()):
                module = found[1] or found[2]
                assert posixpath.normpath(f"{posixpath.dirname(name)}/{module}") in names
    assert [
        name for name in names if name.startswith(("tests/", "docs/", "client/", "worker/", "demo/"))
    ] == []


@pytest.mark.short
@pytest.mark.timeout(300)
def test_a_wheel_asks_for_the_light_dependencies_only(wheel):
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    lines = wheel.read(metadata).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist:")]
    always = {item.split(";")[0].rstrip("=<>.0123456789 ") for item in required if "extra ==" not in item}
    assert always == {"redis", "rq", "msgspec"}
    (points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert b"antiphon = antiphon.cli.main:main" in wheel.read(points)


@pytest.mark.short
@pytest.mark.timeout(300)
def test_the_metadata_of_a_wheel_are_valid_and_of_this_version(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    known = re.sub(
        rb"^Metadata-Version: 2\.\d+", b"Metadata-Version: 2.4", wheel.read(name)
    )  # 2.5 adds fields only
    metadata = Metadata.from_email(known)
    assert (str(metadata.version), metadata.license_expression) == (PROJECT["version"], "MIT")
    assert metadata.description_content_type == "text/markdown"
    assert f"{name.partition('/')[0]}/licenses/LICENSE" in wheel.namelist()


def test_the_version_has_its_section_in_the_changelog_and_is_that_of_all_packages():
    version = PROJECT["version"]
    demo = tomllib.loads((ROOT / "demo" / "pyproject.toml").read_text())["project"]
    assert demo["version"] == version
    assert PROJECT["optional-dependencies"]["demo"] == [f"{demo['name']}=={version}"]
    assert f"antiphon[worker,gateway]=={version}" in demo["dependencies"]
    assert (ROOT / "demo" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert json.loads((ROOT / "client" / "node" / "package.json").read_text())["version"] == version
