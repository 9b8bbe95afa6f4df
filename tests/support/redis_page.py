"""Generates the table of keys in docs/redis.md from their definitions: ``python -m support.redis_page``."""

from pathlib import Path

from support.marked import with_block

from antiphon.wire.keys import KINDS, PREFIX

PAGE = Path(__file__).parents[2] / "docs" / "redis.md"
_IDS = {
    "turn": ["turn"], "journal": ["turn"], "held": ["worker"], "bell": ["queue"], "tenant": ["tenant"],
    "tenant_schedules": ["tenant"], "event_schedules": ["tenant"], "tenant_events": ["tenant"],
    "event": ["event"], "event_data": ["event"], "waiters": ["event"],
    "share": ["share"], "line": ["queue", "share"], "pace": ["tenant"], "bucket": ["scope"],
    "schedule": ["schedule"], "webhook": ["webhook"], "deliveries": ["webhook"], "unindexed": ["memory"],
    "taking_over": ["memory"], "facts": ["scope"], "graph_data": ["thread"], "graph_index": ["thread"],
    "handed_out": ["hash"], "app": ["hash"], "mcp_tools": ["server"], "figures": ["agent@revision"],
    "batch_step": ["step"], "batch_outbox": ["group"], "batch": ["batch"], "batch_steps": ["batch"],
    "missing": ["agent@revision"], "rated_of": ["tenant"],
}  # fmt: skip


def with_table(page: str) -> str:
    """Return the page with the table generated from the code."""
    return with_block(page, "keys", _table())


def _table() -> str:
    rows = ["| key | type | holds | stays |", "|---|---|---|---|"]
    for kind in KINDS:
        key = kind.template.replace("{}", "<{}>").format(*_IDS.get(kind.name, ["session"]))
        rows.append(f"| `{PREFIX}:{key}` | {kind.type} | {kind.holds} | {kind.lifetime} |")
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
