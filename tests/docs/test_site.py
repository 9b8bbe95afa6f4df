"""The documentation site: links and examples as its hooks write them, and nothing that is loaded from elsewhere."""

from __future__ import annotations

import html
import importlib
import importlib.util
import re
from types import ModuleType
from typing import Any

import pytest
from support.offenders import for_each
from support.source_tree import ROOT

CONFIG = (ROOT / "mkdocs.yml").read_text()
KNOWN = {"index.md", "contributing.md", "sessions.md", "storage.md", "decisions/README.md", "img/demo.svg"}


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = hook("site")


@pytest.mark.parametrize(
    ("link", "source", "page", "expected"),
    [
        ("[S](docs/storage.md#stores)", "README.md", "index.md", "[S](storage.md#stores)"),
        ("![Demo](docs/img/demo.svg)", "README.md", "index.md", "![Demo](img/demo.svg)"),
        ("[C](CONTRIBUTING.md)", "README.md", "index.md", "[C](contributing.md)"),
        ("[C](../../CONTRIBUTING.md)", "docs/decisions/README.md", "decisions/README.md", "[C](../contributing.md)"),
        ("[S](../sessions.md)", "docs/decisions/README.md", "decisions/README.md", "[S](../sessions.md)"),
        ("[app.py](../examples/workers/app.py)", "docs/sessions.md", "sessions.md", "app.py"),
        ("[here](#stores)", "docs/sessions.md", "sessions.md", "[here](#stores)"),
        ("[RQ](https://python-rq.org)", "README.md", "index.md", "[RQ](https://python-rq.org)"),
    ],
)  # fmt: skip
def test_a_link_leads_to_the_same_page_on_the_site(link, source, page, expected):
    assert site.LINK.sub(lambda found: site.linked(found, source, page, KNOWN), link) == expected


def test_a_chart_of_states_is_a_table_of_its_arrows():
    page = "```mermaid\nstateDiagram-v2\n    [*] --> queued: submit\n    finished --> [*]\n```\n"
    assert site.CHART.sub(site.chart_as_table, page).splitlines()[2:] == [
        "| (begin) | **queued** | submit |",
        "| **finished** | (end) |  |",
    ]


def test_every_chart_of_the_pages_is_one_that_the_site_can_show():
    for path in (ROOT / "docs").rglob("*.md"):
        assert "```mermaid" not in site.CHART.sub("", path.read_text()), (
            f"{path.name}: only state diagrams are shown"
        )


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<link rel="icon" href=https://cdn.example/a.png>',
        '<img alt="" src="http://cdn.example/a.png">',
        "body { background: url(https://cdn.example/a.png) }",
        '@import "https://cdn.example/a.css";',
        '<pre class="mermaid"><code>graph</code></pre>',
    ],
)  # fmt: skip
def test_what_a_page_loads_from_elsewhere_is_found(text):
    assert site.LOADS.search(text)


@pytest.mark.parametrize(
    "text",
    [
        '<script src="assets/a.js"></script>',
        '<link rel="canonical" href="https://docs.example/">',
        '<a href="https://python-rq.org">RQ</a>',
        "body { background: url(img/a.png) }",
    ],
)
def test_what_lies_beside_a_page_and_links_to_follow_are_let_through(text):
    assert not site.LOADS.search(text)


def test_language_models_get_an_index_and_the_text_of_the_pages():
    llms = hook("llms")
    page = llms.Entry("Turns", "turns.html", "# Turns\n\nRead, [cancel](#a) and\nretry a turn. More.\n")
    generated = llms.Entry("Errors", "reference/errors.html", "# Errors\n\n::: antiphon.errors\n")
    found = [("Guide", [page]), ("API reference", [generated])]
    assert llms.index("Antiphon", "Sessions of turns", found) == (
        "# Antiphon\n\n> Sessions of turns\n\n## Guide\n\n- [Turns](turns.html): Read, cancel and retry a turn\n"
        "\n## API reference\n\n- [Errors](reference/errors.html)\n"
    )
    assert llms.full(found) == "# Turns\n\nRead, [cancel](#a) and\nretry a turn. More.\n"


def in_reference() -> set[str]:
    return {
        name
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    }


def named(path: str) -> Any:
    """What a dotted path names: a module, or what stands in one."""
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


def adapters() -> list[str]:
    """The modules of ``antiphon.ext`` that callers import: those that ``docs/frameworks.md`` names."""
    page = (ROOT / "docs" / "frameworks.md").read_text()
    return sorted(set(re.findall(r"antiphon\.ext\.\w+", page)))


# Of `antiphon.model` and `antiphon.window` callers import what stands in the reference; the rest is the library's.
FRONTS = ["antiphon", "antiphon.client", "antiphon.errors", "antiphon.events", "antiphon.memory", "antiphon.sse",
          "antiphon.stores", "antiphon.testing", "antiphon_gateway", "antiphon_worker", *adapters()]  # fmt: skip


@for_each(FRONTS)
def test_the_reference_has_every_name_that_callers_import(front):
    shown = in_reference()
    there = {id(named(path)) for path in shown}
    module = importlib.import_module(front)
    missing = [
        name
        for name in module.__all__
        if not isinstance(getattr(module, name), str) and id(getattr(module, name)) not in there
    ]
    assert front in shown or missing == []


def test_every_adapter_is_a_module_that_callers_import():
    own = {
        path.stem if path.is_file() else path.name for path in (ROOT / "client/antiphon/ext").glob("[a-z]*")
    }
    assert {f"antiphon.ext.{name}" for name in own - {"histories"}} == {*adapters()}


def test_every_page_of_the_reference_stands_in_the_navigation():
    pages = {page.name for page in (ROOT / "docs" / "reference").glob("*.md")}
    assert pages == set(re.findall(r"reference/([\w.]+)$", CONFIG, re.MULTILINE))


def test_the_reference_leaves_out_what_is_public_for_the_library_alone():
    hidden = re.search(r"\^\(([\w|]+)\)\$", CONFIG)
    seams = (
        (ROOT / "tests" / "docs" / "test_docstrings.py")
        .read_text()
        .partition("SEAMS = {")[2]
        .partition("}")[0]
    )
    assert hidden is not None
    assert set(hidden[1].split("|")) == set(re.findall(r"\.(\w+)\"", seams))


def test_the_theme_loads_no_fonts():
    assert re.search(r"^  font: false$", CONFIG, re.MULTILINE)


def test_examples_of_docstrings_are_blocks_and_the_words_between_them_are_not():
    pytest.importorskip("griffe", reason="make docs installs it")
    text = "Add.\n\n>>> a = 1\n>>> a + 1\n2\n\n>>> a\n1\n\n``a`` is a number.\n\n    drawn ``so``"
    assert hook("reference").fenced(text) == (
        "Add.\n\n```pycon\n>>> a = 1\n>>> a + 1\n2\n\n>>> a\n1\n```\n\n``a`` is a number.\n\n    drawn so"
    )


def test_generated_methods_are_shown_as_help_shows_them():
    griffe = pytest.importorskip("griffe", reason="make docs installs it")
    package = griffe.load(
        "antiphon",
        search_paths=[ROOT / "client"],
        extensions=griffe.load_extensions(str(ROOT / ".ci" / "reference.py")),
    )
    session, client = package["session.session.Session"], package["client.Client"]
    assert "awaited" not in session["clear"].docstring.value
    assert session["clear_async"].docstring.value.startswith("``clear``, awaited.")
    assert {"timeout", "on_tool", "params"} <= {one.name for one in session["run"].parameters}
    assert "tenant" in [one.name for one in client["submit"].parameters]
    assert session["messages"].is_attribute
    assert str(client["submit"].returns) == "Turn"
    assert "await" not in client["submit"].docstring.value


@pytest.mark.parametrize("name", ["top", "explain", "chat"])
def test_a_picture_of_a_terminal_says_what_the_command_says_now(name):
    shown = html.unescape(re.sub(r"<[^>]*>", " ", (ROOT / "docs/img" / f"{name}.svg").read_text()))
    words = re.sub(r"\s+", " ", shown)
    assert re.findall(r"\b1 (?:workers|turns|sessions|tokens|messages|times|lines)\b", words) == []
    assert f"antiphon {name}" in words
