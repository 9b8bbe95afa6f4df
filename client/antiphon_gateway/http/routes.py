"""Finds the operation of a request.

Paths are split before they are decoded, so that a session id may contain a slash (``%2F``), and no decoded character
can lead to another route.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from antiphon_gateway.http.operations import Operation
from antiphon_gateway.problems import Refused

__all__ = ["Routes"]


class Routes:
    """The operations by their paths. Literal segments are preferred to placeholders."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._routes: dict[int, dict[tuple[str, ...], dict[str, Operation]]] = {}
        for one in operations:
            parts = tuple(one.route.split("/")[1:])
            self._routes.setdefault(len(parts), {}).setdefault(parts, {})[one.method] = one

    def find(self, scope: Any) -> tuple[Operation, dict[str, str]]:
        """Return the operation and the values of its placeholders. Raises ``Refused``."""
        found = _segments(scope)
        fitting = [
            (sum(part[:1] == "{" for part in parts), parts, methods)
            for parts, methods in self._routes.get(len(found), {}).items()
            if all(part[:1] == "{" or part == segment for part, segment in zip(parts, found, strict=True))
        ]
        if not fitting:
            raise Refused(
                404, "route_not_found", "There is nothing here: GET /openapi.json lists what there is."
            )
        _, parts, methods = min(fitting, key=lambda one: one[0])
        if scope["method"] not in methods:
            allowed = ", ".join(sorted(methods))
            raise Refused(405, "method_not_allowed", f"Use {allowed} here.", headers={"allow": allowed})
        names = {part[1:-1]: segment for part, segment in zip(parts, found, strict=True) if part[:1] == "{"}
        return methods[scope["method"]], names


def _segments(scope: Any) -> list[str]:
    """The decoded segments of the path below the place where the gateway is mounted. Raises ``Refused``."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "").rstrip("/")
    segments = raw.partition(b"?")[0].split(b"/")[1:]
    if root and (scope["path"] + "/").startswith(root + "/"):
        segments = segments[root.count("/") :]
    try:
        found = [unquote_to_bytes(segment).decode() for segment in segments]
    except UnicodeDecodeError:
        raise Refused(400, "invalid_path", "The path is not percent-encoded UTF-8.") from None
    if not all(found):
        raise Refused(
            404, "route_not_found", "The path has an empty part: GET /openapi.json lists what there is."
        )
    return found
