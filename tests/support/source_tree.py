"""The project's sources as syntax trees: imports, lengths, and public names."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WHEELS = {"antiphon": (".", ("client", "worker")), "antiphon-demo": ("demo", ("demo",))}
"""The distributions: the folder of each pyproject.toml, and the folders of its packages."""
SOURCE_ROOTS = [root for _, roots in WHEELS.values() for root in roots]


@dataclass(frozen=True)
class Module:
    """A module of the project; ``name`` is its dotted name."""

    name: str
    path: Path
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        return len(self.source.splitlines())

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def imports(self, known: Iterable[str] = ()) -> set[str]:
        """Return the dotted names of all imports in it, including those for type checking and inside functions.

        If ``from a.b import c`` names a module of ``known``, it is ``a.b.c``.
        """
        names = set(known)
        froms = {
            f"{base}.{name}" if f"{base}.{name}" in names else base for base, name in self.imported_names
        }
        return froms | {
            alias.name for node in self.nodes if isinstance(node, ast.Import) for alias in node.names
        }

    @cached_property
    def imported_names(self) -> list[tuple[str, str]]:
        """``(module, name)`` for every ``from module import name``."""
        froms = [node for node in self.nodes if isinstance(node, ast.ImportFrom)]
        return [(self._base(node), alias.name) for node in froms for alias in node.names]

    def functions(self) -> Iterator[tuple[str, int]]:
        """Yield the name and length in lines of every function, methods as ``Class.method``."""
        yield from _functions(self.tree, "")

    def defined(self) -> set[str]:
        """Return the names defined at the top level."""
        return set(_bound(self.tree.body))

    def exported(self) -> list[str] | None:
        """Return ``__all__``, or None if there is none."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [
                "__all__"
            ]:
                return list(ast.literal_eval(node.value))
        return None

    def texts(self) -> Iterator[tuple[int, str]]:
        """Yield the line and value of every string that is not a docstring."""
        docstrings = {
            node.body[0].value
            for node in self.nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in self.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                yield node.lineno, node.value

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        is_package = self.path.name == "__init__.py"
        parts = parts[: len(parts) - node.level + is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])


def packages(wheel: str | None = None) -> list[Path]:
    """Return the package folders of one wheel or of all; ``client/node``, an npm package, is not among them."""
    roots = [root for name, (_, roots) in WHEELS.items() for root in roots if wheel in (None, name)]
    return sorted(path.parent for root in roots for path in (ROOT / root).glob("*/__init__.py"))


@cache
def modules() -> dict[str, Module]:
    """Return every module of the packages, by dotted name."""
    found: dict[str, Module] = {}
    for package in packages():
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path, path.read_text(encoding="utf-8"))
    return found


def find_cycle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names of one cycle in order, ending with the first again; [] if there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        path.append(name)
        for target in sorted(edges.get(name, ())):
            if cycle := visit(target):
                return cycle
        done.add(path.pop())
        return []

    for name in sorted(edges):
        if cycle := visit(name):
            return cycle
    return []


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            assert child.end_lineno is not None
            yield prefix + child.name, child.end_lineno - first + 1
        inner = f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix
        yield from _functions(child, inner)


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            case ast.Assign():
                yield from (
                    n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)
                )
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.Try():
                yield from _bound(ast.iter_child_nodes(node))
            case _:
                pass
