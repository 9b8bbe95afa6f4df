"""docs/settings.md has every setting with its default, as the code has them."""

from __future__ import annotations

from support.marked import with_block
from support.source_tree import ROOT

from antiphon.bytestores.of_process import FileSettings
from antiphon.encryption.keyring import EncryptionSettings
from antiphon.settings import DeclaredSettings, default_of
from antiphon.wire.connection.moved import MoveSettings
from antiphon_gateway import settings as gateway
from antiphon_worker import settings as worker

PAGE = ROOT / "docs" / "settings.md"


def settings_table(settings: type[DeclaredSettings]) -> str:
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for known in settings.declared():
        default = f"`{default_of(known)}`" if default_of(known) else ""
        rows.append(f"| `{settings.variable(known.name)}` | {default} | {known.metadata['doc']} |")
    return "\n".join(rows)


def whole(page: str) -> str:
    page = with_block(page, "settings", settings_table(worker.Settings))
    page = with_block(page, "gateway", settings_table(gateway.GatewaySettings))
    page = with_block(page, "moves", settings_table(MoveSettings))
    page = with_block(page, "files", settings_table(FileSettings))
    return with_block(page, "encryption", settings_table(EncryptionSettings))


def test_the_tables_of_settings_are_those_in_the_code():
    page = PAGE.read_text()
    assert page == whole(page), "Write it anew: PYTHONPATH=tests python tests/docs/test_pages_of_settings.py"


if __name__ == "__main__":
    PAGE.write_text(whole(PAGE.read_text()))
