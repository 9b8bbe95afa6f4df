"""The files of the page ``/live``: what a browser gets, and what it is forbidden to do with them."""

import re
from collections.abc import Iterable
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest
from support.gateway import open_gateway
from support.serving import serving
from support.source_tree import ROOT

from antiphon_gateway.access.access import Access
from antiphon_gateway.access.caller import Key, Keys, hash_of, new_key
from antiphon_gateway.page.files import POLICY

STATIC = ROOT / "client/antiphon_gateway/page/static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
SOURCES = ROOT / "client/node/src"
PACKAGE = ["errors.js", "follow.js", "generated.js", "http.js", "sse.js", "values.js", "waiting.js"]
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
MOST_LINES, MOST_BYTES = 400, 120_000  # bytes: of what a browser reads before it shows the page
# What a panel in panels/ adds when it opens, with the modules that only it needs. A new panel is one line here.
MOST_BYTES_OF_PANEL = {
    "panels/session.js": 60_000,
    "panels/agents.js": 5_000,
    "panels/budgets.js": 5_000,
    "panels/requests.js": 5_000,
    "panels/tree.js": 5_000,
    "panels/variants.js": 6_000,
}
IMPORTED = re.compile(r'^(?:import|export) .*"(\..+)";$', re.MULTILINE)
ON_DEMAND = re.compile(r"\bimport\(([^)]*)\)")
pytestmark = pytest.mark.one_server


async def test_each_file_of_the_page_is_served_with_headers_that_let_nothing_else_in(redis_url):
    async with open_gateway(redis_url) as (api, _):
        page = await api.http.get("/live")
        assert page.status_code == 200
        assert page.text == (STATIC / "index.html").read_text()
        for path in FILES:
            answer = await api.http.get(f"/live/{path.relative_to(STATIC)}")
            assert answer.content == path.read_bytes()
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            kind = {
                ".js": "text/javascript",
                ".css": "text/css",
                ".svg": "image/svg+xml",
                ".html": "text/html",
            }
            assert answer.headers["content-type"].partition(";")[0] == kind[path.suffix]
            same = await api.http.get(
                answer.request.url.path, headers={"if-none-match": answer.headers["etag"]}
            )
            assert (same.status_code, same.content) == (304, b"")
        for name in PACKAGE:
            assert (await api.http.get(f"/live/antiphon/{name}")).content == (SOURCES / name).read_bytes()
        for path in (
            "/live/nothing.js",
            "/live/%2e%2e/files.py",
            "/live/..%2ffiles.py",
            "/live/a/b/c.js",
            "/live/showing",
            "/live/antiphon/redis",
        ):
            assert (await api.http.get(path)).status_code == 404


async def test_the_page_itself_needs_no_key_and_what_it_reads_does(redis_url):
    closed = Access(Keys({"shop": Key(hash=hash_of(new_key()), tenant="acme")}))
    async with open_gateway(redis_url, access=closed) as (api, _):
        assert (await api.http.get("/live")).status_code == 200
        assert (await api.http.get("/sessions")).status_code == 401


async def test_a_mounted_gateway_serves_the_page_below_its_own_path(redis_url):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    async with open_gateway(redis_url) as (api, app), serving(Starlette(routes=[Mount("/ai", app)])) as port:
        address = f"http://127.0.0.1:{port}/ai/live"
        assert (await api.http.get(address)).status_code == 200
        assert (await api.http.get(f"{address}/main.js")).status_code == 200


PAGES_OF_EXAMPLES = sorted((ROOT / "examples").rglob("*.html"))


@pytest.mark.parametrize("path", PAGES_OF_EXAMPLES, ids=lambda path: path.parent.name)
def test_no_page_of_an_example_makes_markup_of_a_text(path):
    assert MARKUP.search(path.read_text()) is None


def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup():
    for path in FILES:
        source = path.read_text()
        addresses = set(re.findall(r"https?://[^\s\"')]+", source)) - {"http://www.w3.org/2000/svg"}
        assert addresses == set(), path
        assert MARKUP.search(source) is None, path
        assert not re.search(r"<script(?! type=\"module\" src=)|\sstyle=|\son\w+=\"", source), path


def _source(name: str) -> Path:
    package = name.removeprefix("antiphon/")
    return STATIC / name if package == name else SOURCES / package


def _needed(name: str) -> set[str]:
    """The modules that a browser reads before it runs this one, which is among them."""
    found, left = set[str](), [name]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += [
                normpath(join(dirname(one), other)) for other in IMPORTED.findall(_source(one).read_text())
            ]
    return found


def _styles_of(panel: str) -> set[str]:
    name = f"{panel.removesuffix('.js')}.css"
    return {name} if (STATIC / name).exists() else set()


def _size(names: Iterable[str]) -> int:
    return sum(len(_source(name).read_bytes()) for name in names)


def test_a_browser_reads_little_before_it_shows_the_page():
    rest = {path.name for path in FILES if path.parent == STATIC and path.suffix != ".js"}
    assert _size(_needed("main.js") | rest) < MOST_BYTES


def test_each_panel_is_read_when_it_opens_and_is_small():
    modules = {path.relative_to(STATIC).as_posix() for path in FILES if path.suffix == ".js"}
    asked = {
        normpath(join(dirname(name), place.strip('"')))
        for name in modules
        for place in ON_DEMAND.findall(_source(name).read_text())
    }
    panels = {name for name in modules if name.startswith("panels/")}
    first = _needed("main.js")
    assert asked == panels == set(MOST_BYTES_OF_PANEL)
    assert not first & panels
    added = {name: _needed(name) - first | _styles_of(name) for name in panels}
    assert {name: most for name, most in MOST_BYTES_OF_PANEL.items() if _size(added[name]) >= most} == {}
    every = {path.relative_to(STATIC).as_posix() for path in FILES if path.parent != STATIC}
    assert every | modules <= first.union(*added.values())


def test_no_file_and_no_folder_of_the_page_is_long():
    assert [path.name for path in FILES if len(path.read_text().splitlines()) > MOST_LINES] == []
    folders = {path.parent for path in FILES}
    assert all(len(list(folder.iterdir())) <= 14 for folder in folders)
