"""The command for the files of a session."""

from __future__ import annotations

import sys
from pathlib import Path

from antiphon.cli.arguments import (
    add_archive,
    add_json,
    add_redis,
    command_parser,
    print_found,
    read_client,
)
from antiphon.client import AsyncClient
from antiphon.errors import UsageError
from antiphon.input.ids import session_id
from antiphon.model.files import FileEntry


def files(argv: list[str]) -> int:
    """List the stored files of a session; add, read or remove some

    A message names an added file by its id: {"type": "file", "id": "…"}.
    """
    parser = command_parser(files)
    parser.add_argument("session")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--add", metavar="PATH", nargs="+", help="store these files in the session")
    action.add_argument("--read", metavar="ID", help="write the content of a file to --output")
    action.add_argument("--remove", metavar="ID", nargs="+", help="remove these files from the session")
    parser.add_argument("--output", metavar="PATH", help="where --read writes; by default to standard output")
    add_json(parser, "print each file as a line of JSON")
    add_archive(parser)
    add_redis(parser)
    options = parser.parse_args(argv)
    where = session_id(options.session)
    if options.read is not None:
        read = read_client(options, lambda client: client.session(where).read_file(options.read))
        return _write(read.data, options.output)
    found = read_client(options, lambda client: _changed(client, where, options.add, options.remove))
    rows = [[one.id, one.media_type or "-", one.size, one.name or "-"] for one in found]
    return print_found(options, found, "id, type, bytes, name", rows, "The session stores no files.")


async def _changed(
    client: AsyncClient, where: str, add: list[str] | None, remove: list[str] | None
) -> list[FileEntry]:
    """Return the files of a session after some were added or removed."""
    session = client.session(where)
    for path in add or ():
        try:
            await session.add_file(Path(path))
        except OSError as exc:
            raise UsageError(f"The file {path} cannot be read: {exc.strerror or exc}.") from exc
    for file in remove or ():
        await session.remove_file(file)
    return await session.stored_files()


def _write(data: bytes, path: str | None) -> int:
    if path is not None:
        try:
            Path(path).write_bytes(data)
        except OSError as exc:
            raise UsageError(f"The file {path} cannot be written: {exc.strerror or exc}.") from exc
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return 0
