"""Files of sessions over HTTP: uploads, and contents in which a browser runs nothing."""

from __future__ import annotations

import hashlib

import pytest
from support.gateway import STAGE, open_gateway, stand

from antiphon.input.limits import LIMITS

pytestmark = pytest.mark.one_server
PNG = b"\x89PNG\r\n\x1a\n\r\n--not-the-boundary\r\n" + bytes(range(256))
NAMED = b"Content-Disposition: form-data; filename"
ID = hashlib.sha256(PNG).hexdigest()


async def test_a_file_is_uploaded_said_listed_read_and_removed(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        address, headers = "/sessions/s/files", {"content-type": "image/png"}
        added = await api.call("POST", f"{address}?name=cat.png", 201, content=PNG, headers=headers)
        part = {"type": "image", "media_type": "image/png", "id": ID}
        assert added == {"files": [part]}
        assert await api.call("POST", f"{address}?name=cat.png", 201, content=PNG, headers=headers) == added
        turn = await api.post(
            "/sessions/s/turns", {"input": [{"type": "text", "text": "What is this?"}, part], "agent": STAGE}
        )
        await api.result(turn["turn_id"])
        messages = (await api.get("/sessions/s/messages"))["messages"]
        assert messages[0]["parts"][1] == part
        entry = {"id": ID, "size": len(PNG), "media_type": "image/png", "name": "cat.png"}
        assert await api.get(address) == {"files": [entry]}
        found = await api.http.get(f"{address}/{ID}")
        assert (found.content, found.headers["content-type"]) == (PNG, "image/png")
        await api.call("DELETE", f"{address}/{ID}", 204)
        for method in ("GET", "DELETE"):
            assert (await api.call(method, f"{address}/{ID}", 404))["code"] == "not_found"


async def test_a_form_brings_several_files(redis_url):
    async with open_gateway(redis_url) as (api, _):
        files = [
            ("file", ("cat.png", PNG, "image/png")),
            ("file", ("ünï.txt", b"", "text/plain")),
            ("file", ("plan.pdf", b"%PDF", "application/pdf")),
        ]
        added = await api.call("POST", "/sessions/s/files", 201, files=files, data={"note": "no file"})
        assert [one["type"] for one in added["files"]] == ["image", "file", "file"]
        listed = (await api.get("/sessions/s/files"))["files"]
        assert {(one["name"], one["size"]) for one in listed} == {
            ("cat.png", len(PNG)), ("ünï.txt", 0), ("plan.pdf", 4),
        }  # fmt: skip
        assert (await api.http.get(f"/sessions/s/files/{ID}")).content == PNG


@pytest.mark.parametrize(
    ("boundary", "body"),
    [
        ("", b"--b\r\n"),
        ("; boundary=b", b""),
        ("; boundary=b", b"--b\r\n\r\ncut off"),
        ("; boundary=b", b"before--b\r\n\r\n--b--"),
        ("; boundary=b", b"--b\r\nno headers\r\n--b--"),
        ("; boundary=b", b"--b\r\n\r\nno file\r\n--b--\r\n"),
        (f"; boundary={'b' * 71}", b"--b--"),
        (f"; boundary=b{';' * 9000}", b"--b\r\n" + NAMED + b"\r\n\r\n\r\n--b--"),
        ("; boundary=b", b"--b\r\n" + NAMED + b";" * 1_000_000 + b"\r\n\r\n\r\n--b--"),
        ("; boundary=b", b"\r\n--b" * 1_000_000 + b"--"),
        ("; boundary=b", b"--b\r\n" + NAMED + b"*=idna''..a\r\n\r\n\r\n--b--"),
        ("; boundary=b", b"--b\r\n" + NAMED + b"*=utf-7''%2B2AA-\r\n\r\n\r\n--b--"),
        ("; boundary=b", b"--b\r\n" + NAMED + b"*=a\x00b''a\r\n\r\n\r\n--b--"),
    ],
)
async def test_a_form_that_cannot_be_read_is_refused(redis_url, boundary, body):
    async with open_gateway(redis_url) as (api, _):
        headers = {"content-type": f"multipart/form-data{boundary}"}
        refused = await api.call("POST", "/sessions/s/files", 400, content=body, headers=headers)
        assert (refused["code"], "The form cannot be read" in refused["detail"]) == ("invalid_body", True)
        assert await api.get("/sessions/s/files") == {"files": []}


@pytest.mark.parametrize(
    ("given", "served"),
    [
        ("text/html", "application/octet-stream"),
        ("image/svg+xml", "application/octet-stream"),
        ("application/xhtml+xml", "application/octet-stream"),
        ("text/javascript", "application/octet-stream"),
        ("TEXT/PLAIN; charset=utf-8", "text/plain"),
        ("application/pdf", "application/pdf"),
        ("audio/mpeg", "audio/mpeg"),
        ("nonsense", "text/plain"),
    ],
)
async def test_no_browser_runs_what_a_file_contains(redis_url, given, served):
    async with open_gateway(redis_url) as (api, _):
        name, attack = 'a".html\r\nset-cookie: a=b', b"<script>alert(1)</script>"
        added = await api.call(
            "POST", "/sessions/s/files", 201, params={"name": name}, content=attack,
            headers={"content-type": given},
        )  # fmt: skip
        [file] = added["files"]
        found = await api.http.get(f"/sessions/s/files/{file['id']}")
        assert found.content == attack
        assert found.headers["content-type"].partition(";")[0] == served
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert found.headers["content-disposition"] == (
            "attachment; filename*=UTF-8''a%22.html%0D%0Aset-cookie%3A%20a%3Db"
        )
        assert "set-cookie" not in found.headers


async def test_a_body_that_is_too_large_is_refused(redis_url, monkeypatch):
    monkeypatch.setattr("antiphon_gateway.interface.files.MOST_FORM_BYTES", 10 - LIMITS.file_bytes)
    async with open_gateway(redis_url) as (api, _):
        await api.call("POST", "/sessions/s/files", 201, content=b"0" * 10)
        refused = await api.call("POST", "/sessions/s/files", 413, content=b"0" * 11)
        assert refused["code"] == "body_too_large"
