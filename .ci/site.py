"""Hooks of mkdocs.yml: the pages beside docs/, links as the site needs them, and nothing loaded from elsewhere.

The pages are written to be read on a code host as well. On the site the README, CONTRIBUTING and the changelog are
pages like the others, a link to a file that is no page is plain text, and a chart of states is a table.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#]*)(#[^)]*)?\)")
CHART = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ARROW = re.compile(r"^\s+(\S+) --> (\S+?)(?:: (.*))?$", re.MULTILINE)
# What a page or a style sheet loads when it is shown. Links that a reader may follow are none of these.
LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b(?![^>]*rel=["']?(?:canonical|next|prev))[^>]*?\bhref=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|url\(\s*["']?(?:https?:)?//[^)]+|@import\s+["'](?:https?:)?//[^"']+"""
    r"""|<[^>]+class=["']?[^"'>]*\bmermaid\b"""
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie beside docs/."""
    from mkdocs.structure.files import File

    for source, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put links and charts into the site's form."""
    beside = {page: source for source, page in BESIDE.items()}
    name = page.file.src_uri
    source = beside.get(name) or f"docs/{name}"
    known = {file.src_uri for file in files}
    return CHART.sub(chart_as_table, LINK.sub(lambda link: linked(link, source, name, known), markdown))


def linked(link: re.Match[str], source: str, page: str, known: set[str]) -> str:
    """A link as it leads from ``page`` of the site, where it stood in the file ``source`` of the project."""
    image, words, target, anchor = link.groups()
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    to = BESIDE.get(file) or file.removeprefix("docs/")
    if file not in BESIDE and (not file.startswith("docs/") or to not in known):
        return words
    return f"{image}[{words}]({posixpath.relpath(to, posixpath.dirname(page) or '.')}{anchor or ''})"


def chart_as_table(chart: re.Match[str]) -> str:
    """Each arrow of a chart of states as a row."""
    rows = ["| from | to | by |", "|---|---|---|"]
    for old, new, by in ARROW.findall(chart[1]):
        rows.append(f"| {state(old, 'begin')} | {state(new, 'end')} | {by} |")
    return "\n".join(rows)


def state(name: str, outside: str) -> str:
    return f"({outside})" if name == "[*]" else f"**{name}**"


def on_post_build(config: Any) -> None:
    """Refuse a site that loads anything from elsewhere."""
    from mkdocs.exceptions import PluginError

    site = Path(config["site_dir"])
    found = [
        f"{path.relative_to(site)}: {text:.120}"
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".css")
        for text in LOADS.findall(path.read_text())
    ]
    if found:
        raise PluginError("The site loads from elsewhere:\n" + "\n".join(found))
