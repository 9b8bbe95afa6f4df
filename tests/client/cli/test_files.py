"""`antiphon files`: the files of a session at the command line."""

from __future__ import annotations

import json

import pytest

from antiphon.cli.main import main

pytestmark = pytest.mark.one_server


@pytest.fixture(autouse=True)
def _redis(redis_url, monkeypatch):
    monkeypatch.setenv("ANTIPHON_REDIS_URL", redis_url)


def ran(capsys, *arguments, code=0):
    assert main(["files", *map(str, arguments)]) == code
    return capsys.readouterr()


def test_files_are_added_listed_read_and_removed(tmp_path, capsys):
    (tmp_path / "plan.pdf").write_bytes(b"%PDF")
    (tmp_path / "note.txt").write_bytes(b"Buy milk.")
    assert ran(capsys, "s").err == "The session stores no files.\n"
    added = ran(capsys, "s", "--add", tmp_path / "plan.pdf", tmp_path / "note.txt", "--json").out
    ids = {one["name"]: one["id"] for one in map(json.loads, added.splitlines())}
    assert [line.split()[1:] for line in ran(capsys, "s").out.splitlines()[1:]] == [
        [kind, size, name]
        for _, kind, size, name in sorted(
            [
                (ids["plan.pdf"], "application/pdf", "4", "plan.pdf"),
                (ids["note.txt"], "text/plain", "9", "note.txt"),
            ]
        )
    ]
    ran(capsys, "s", "--read", ids["note.txt"], "--output", tmp_path / "read.txt")
    assert (tmp_path / "read.txt").read_bytes() == b"Buy milk."
    left = ran(capsys, "s", "--remove", ids["note.txt"], "--json").out
    assert json.loads(left)["id"] == ids["plan.pdf"]
    assert "does not store this file" in ran(capsys, "s", "--read", ids["note.txt"], code=1).err


def test_paths_that_cannot_be_used_are_named(tmp_path, capsys):
    assert "cannot be read" in ran(capsys, "s", "--add", tmp_path / "none", code=2).err
    (tmp_path / "note.txt").write_bytes(b"1")
    added = json.loads(ran(capsys, "s", "--add", tmp_path / "note.txt", "--json").out)
    assert "cannot be written" in ran(capsys, "s", "--read", added["id"], "--output", tmp_path, code=2).err
