"""The accepted deletions that no test notices, each with a reason."""

from pathlib import Path

_FILE = Path(__file__).parent / "accepted.txt"


def read_accepted() -> dict[str, str]:
    """Return the accepted statements (``file: text``) with their reasons."""
    accepted: dict[str, str] = {}
    for line in _FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            statement, arrow, reason = line.partition(" -> ")
            if not arrow or not reason.strip():
                raise ValueError(f"{_FILE.name} gives no reason for: {line}")
            accepted[statement] = reason
    return accepted
