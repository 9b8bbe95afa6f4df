"""JSON as accepted by the strictest readers."""

from typing import Any


def with_distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An ``object_pairs_hook`` that refuses an object with duplicate names, as parsers of other languages do."""
    found = dict(pairs)
    assert len(found) == len(pairs), f"An object has one name twice: {[name for name, _ in pairs]}"
    return found
