"""The files of sessions: upload, list, read and remove them."""

from __future__ import annotations

from collections.abc import Generator
from email.message import Message as Headers
from email.parser import HeaderParser
from urllib.parse import quote

from msgspec import Struct
from starlette.responses import Response

from antiphon.errors import NotFound
from antiphon.input.limits import LIMITS
from antiphon.model import File, Image
from antiphon.model.files import FileEntry, StoredFile
from antiphon_gateway.http.operations import Call, operation, read_bytes
from antiphon_gateway.interface.sessions import session_of
from antiphon_gateway.problems import Refused

MOST_FORM_BYTES = 64 * 1024  # of a form, besides the content of its files
MOST_HEADER_BYTES = 8 * 1024  # of one part, and of the header that names the boundary
BINARY = "application/octet-stream"
SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf", "text/plain")
"""The types that are served unchanged, besides audio and video. Browsers run no scripts in them."""


class FileQuery(Struct):
    """``name`` is that of the file, if the body is its content."""

    name: str | None = None


class AddedFiles(Struct):
    """Files that were added, for use in messages of this session."""

    files: list[Image | File]


class FileList(Struct):
    """The stored files of a session, ordered by id."""

    files: list[FileEntry]


@operation("POST", "/sessions/{session}/files", right="write", status=201, content="body")
async def add_files(call: Call[FileQuery, None]) -> AddedFiles:
    """Add files to a session: the body is the content of one, or a form with several

    The header Content-Type of the content is its media type. A repeated request stores nothing twice. A session begins
    with its first file.
    """
    session, request = session_of(call), call.request
    body = await read_bytes(request, LIMITS.file_bytes + MOST_FORM_BYTES)
    kind = Headers()
    kind["content-type"] = request.headers.get("content-type", BINARY)
    if kind.get_content_type() == "multipart/form-data":
        given = list(files_of_form(body, kind))
    else:
        given = [(call.query.name, kind.get_content_type(), body)]
    added = [await session.add_file(data, name=name, media_type=media) for name, media, data in given]
    return AddedFiles(added)


@operation("GET", "/sessions/{session}/files", right="read")
async def list_files(call: Call[None, None]) -> FileList:
    """List the stored files of a session: those that were added, and those of messages and tools"""
    found = await session_of(call).stored_files()
    await call.check_life()
    return FileList(found)


@operation("GET", "/sessions/{session}/files/{file}", right="read", content="answer")
async def read_file(call: Call[None, None]) -> Response:
    """Read the content of a stored file

    It is sent as an attachment, so that browsers do not open it as a page.
    """
    found = await session_of(call).read_file(call.path["file"])
    await call.check_life()
    return Response(found.data, headers=_headers(found))


@operation("DELETE", "/sessions/{session}/files/{file}", right="write", status=204)
async def remove_file(call: Call[None, None]) -> None:
    """Remove a stored file; messages that name it stay"""
    if not await session_of(call).remove_file(call.path["file"]):
        raise NotFound("The session does not store this file.", session_id=call.path["session"])


def files_of_form(body: bytes, kind: Headers) -> Generator[tuple[str | None, str | None, bytes]]:
    """Yield the name, the media type and the content of each file of a form. Raises ``Refused``."""
    short = len(kind["content-type"]) <= MOST_HEADER_BYTES  # long headers take the parser too much time
    boundary = kind.get_param("boundary") if short else None
    if not isinstance(boundary, str) or not 1 <= len(boundary) <= 70:
        raise _no_form("it has no boundary")
    first, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), 2 * LIMITS.session_files)
    if first.strip() or not parts or not parts[-1].startswith(b"--"):
        raise _no_form("it does not end with its boundary")
    found = 0
    for part in parts[:-1]:
        head, blank, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        if not blank:
            raise _no_form("a part has no headers")
        if len(head) > MOST_HEADER_BYTES:
            raise _no_form("a part has too long headers")
        headers = HeaderParser().parsestr(head.decode("utf-8", "replace"))
        name = _name_of(headers)
        if name is None:
            continue  # a field of the form
        found += 1
        yield name or None, headers.get_content_type() if "content-type" in headers else None, content
    if not found:
        raise _no_form("it has no file")


def _name_of(headers: Headers) -> str | None:
    """Return the name of the file in a part, or None for another field of the form. Raises ``Refused``."""
    try:
        name = headers.get_filename()
        if name is not None:
            name.encode()
    except ValueError as exc:  # it may be in any encoding
        raise _no_form("the name of a file cannot be decoded") from exc
    return name


def _no_form(problem: str) -> Refused:
    return Refused(400, "invalid_body", f"The form cannot be read: {problem}. Send multipart/form-data.")


def _headers(file: StoredFile) -> dict[str, str]:
    media = (file.media_type or BINARY).lower()
    shown = media in SHOWN or media.startswith(("audio/", "video/"))
    name = quote(file.name or file.id, safe="")
    return {
        "content-type": media if shown and media.isascii() else BINARY,
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "content-security-policy": "default-src 'none'; sandbox",
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }


OPERATIONS = [add_files, list_files, read_file, remove_file]
