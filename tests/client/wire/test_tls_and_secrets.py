"""Passwords and TLS on real servers, and no word of a password where anybody reads along."""

import logging
import shutil
import socket
import subprocess

import pytest
import redis
from redis.asyncio import Redis
from support.clusters import Cluster
from support.network import free_port
from support.servers import RedisServer, Sentinel

from antiphon import Client
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, SettingsError, StoreUnavailable, StoreUnsupported
from antiphon.wire.connection.open import open_redis, redact
from antiphon.wire.preflight import check_redis, read_redis
from antiphon_worker.settings import Settings, describe

WORD = "gehe1m"
WRITTEN_WRONGLY = [
    f"redis://:{WORD}/x@host:1/0", f"redis://:{WORD}#x@host:1/0", f"redis://u:{WORD}?s=1@host/0", f"redis://:a/{WORD}@host",
    f"redis://:a:{WORD}@host:port", f"redis://:[{WORD}@host", f"redis://:a@{WORD}@host/0", f":{WORD}@host:6379",
    f"redis://host/0?password={WORD}", f"redis://host/0?nonsense=1&password={WORD}", f"redis://u:a#{WORD}@host:1/0",
    f"redis+sentinel://:{WORD}@", f"redis+sentinel://a:b/x/y?sentinel_password={WORD}", f"redis://:{WORD}@host:99999999/0",
    f"http://:{WORD}@host", f"redis://{WORD}@host:x/0", f"redis://host/0?ssl_password={WORD}",
    f"redis://host/0?pasword={WORD}", f"redis://host/0?pass={WORD}", f"redis://host/0?pw={WORD}", f"redis://host/0?{WORD}",
    f"redis://host/0?Password%20={WORD}", f"redis://host/0?db=0&key={WORD}", f"redis://host/0?a=1;pass={WORD}",
    f"redis://host/0?timeout={WORD}", f"redis://host/0#{WORD}", f"redis+sentinel://a:1/x/0?sentinel_pasword={WORD}",
    f"redis://:{WORD}/0", f"redis://user:{WORD}/0", f"redis://host:{WORD}", f"redis+sentinel://a:{WORD},b:1/x/0",
    f"redis+cluster://host:{WORD}?cells=2", f"rediss://host/0?ssl_cert_reqs={WORD}", f"redis://[::1]:{WORD}/0",
    f"redis://host/{WORD}", f"redis://host/0?db={WORD}", f"redis://host/0?socket_timeout={WORD}",
]  # fmt: skip


@pytest.mark.parametrize("url", WRITTEN_WRONGLY)
async def test_no_password_of_a_url_is_told_however_it_is_written(url, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    said = [redact(url), repr(Settings(redis_url=url, archive=url)), describe(Settings(redis_url=url))]
    for make in (
        lambda: open_redis(url, retries=0, timeout_seconds=0.2),
        lambda: AsyncClient(url),
        lambda: Client(url),
        lambda: Client([url]),
    ):
        try:
            made = make()
            said += [repr(made), str(made), repr(getattr(made, "connection_pool", ""))]
        except AgentError as exc:
            while exc is not None:
                said += [str(exc), repr(exc)]
                exc = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    assert not [one for one in [*said, caplog.text] if WORD in one]


def test_a_wrong_password_is_not_told(redis_url):
    with redis.Redis.from_url(redis_url) as plain:
        plain.config_set("requirepass", "right")
        try:
            with (
                pytest.raises(AgentError) as refused,
                Client(redis_url.replace("://", f"://:{WORD}@")) as client,
            ):
                client.submit("s", "x")
            assert WORD not in repr(refused.value)
        finally:
            redis.Redis.from_url(redis_url, password="right").config_set("requirepass", "")


def test_what_is_no_redis_is_not_shown():
    with pytest.raises(SettingsError) as refused:
        Client({"password": WORD})
    assert WORD not in str(refused.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key.pem", "-out",
         folder / "cert.pem", "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


def tls_config(folder, port):
    return {
        "tls-port": str(port), "tls-cert-file": str(folder / "cert.pem"), "tls-key-file": str(folder / "key.pem"),
        "tls-ca-cert-file": str(folder / "cert.pem"), "tls-auth-clients": "no", "tls-replication": "yes",
    }  # fmt: skip


class TlsSentinel(Sentinel):
    """Speaks TLS alone, and asks for a password."""

    def __init__(self, primary, folder, port):
        super().__init__(primary)
        self.tls_port = free_port()
        self.config |= tls_config(folder, self.tls_port) | {"requirepass": "watcher"}
        self._watch[0] = f"sentinel monitor {self.master_name} 127.0.0.1 {port} 1"
        self._watch.append(f"sentinel auth-pass {self.master_name} pri/mary")

    def _answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.tls_port), timeout=1):
                return True
        except OSError:
            return False


tls_server = pytest.mark.skipif(
    not shutil.which("redis-server") or not shutil.which("openssl"), reason="no redis-server with TLS"
)


@tls_server
async def test_a_client_of_redis_py_with_tls_leads_to_its_server(certificate):
    port = free_port()
    with RedisServer("redis", config=tls_config(certificate, port)):
        ca = str(certificate / "cert.pem")
        for theirs in (
            redis.Redis("127.0.0.1", port, ssl=True, ssl_ca_certs=ca),
            redis.Redis.from_url(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={ca}"),
            Redis(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=ca),
        ):
            async with AsyncClient(theirs) as client:
                turn = await client.submit("s", "x", key="once")
                assert await turn.status() == "queued"
        async with AsyncClient(redis.Redis("127.0.0.1", port, ssl=True), retries=0) as client:
            with pytest.raises(StoreUnavailable):  # nobody vouches for the certificate
                await client.submit("t", "x")


async def refusal(url):
    """How a client tells that it cannot submit."""
    async with AsyncClient(url, retries=0, timeout_seconds=1) as client:
        with pytest.raises(StoreUnavailable) as refused:
            await client.submit("s", "x")
    return str(refused.value)


@tls_server
@pytest.mark.lasting_keys("ant:*")
async def test_a_cluster_with_tls_and_a_password(certificate):
    config = lambda: tls_config(certificate, free_port()) | {"tls-cluster": "yes"}  # noqa: E731
    with Cluster("redis", primaries=2, config=config) as cluster:
        for node in cluster.nodes:
            cluster.call(node, "CONFIG", "SET", "requirepass", WORD)
        places = ",".join(f"127.0.0.1:{node.config['tls-port']}" for node in cluster.nodes)
        url = f"rediss+cluster://:{WORD}@{places}?cells=4&ssl_ca_certs={certificate / 'cert.pem'}"
        async with AsyncClient(url) as client:
            sessions = [f"s{number}" for number in range(8)]
            for session in sessions:
                await client.submit(session, "Hi", agent="a")
            assert {one.session_id async for one in client.sessions()} == set(sessions)
        async with AsyncClient(url.replace(WORD, "wrong")) as client:
            with pytest.raises(AgentError) as refused:
                await client.submit("s", "Hi", agent="a")
        assert "password" in str(refused.value)
        assert WORD not in repr(refused.value)


async def test_a_url_that_asks_for_tls_where_there_is_none_is_told_so(redis_url):
    assert "if this port speaks no TLS, write redis " in await refusal(
        redis_url.replace("redis://", "rediss://")
    )


@pytest.mark.main_path
@tls_server
async def test_a_url_that_asks_for_no_tls_where_there_is_tls_is_told_so(certificate):
    port = free_port()
    with RedisServer("redis", config=tls_config(certificate, port)):
        for url in (f"redis://127.0.0.1:{port}/0", f"redis://a:b@127.0.0.1:{port}/1"):
            assert "if this port speaks TLS, write rediss " in await refusal(url)


async def test_a_server_that_is_not_there_is_no_matter_of_tls():
    port = free_port()
    for scheme in ("redis", "rediss"):
        assert "TLS" not in await refusal(f"{scheme}://127.0.0.1:{port}/0")


@tls_server
async def test_a_primary_behind_sentinels_with_passwords_and_tls(certificate):
    port = free_port()
    config = tls_config(certificate, port)
    with RedisServer("redis", config=config) as primary:
        with redis.Redis(port=primary.port) as plain:
            plain.config_set("requirepass", "pri/mary")
        with TlsSentinel(primary, certificate, port) as sentinel:
            url = (
                f"rediss+sentinel://:pri%2Fmary@127.0.0.1:{sentinel.tls_port}/primary/0"
                f"?sentinel_password=watcher&ssl_ca_certs={certificate / 'cert.pem'}&ssl_check_hostname=true"
            )
            async with AsyncClient(url) as client:
                turn = await client.submit("s", "x")
                assert await turn.status() == "queued"
                events = client.subscribe("s", after=0)
                assert (await anext(events)).type == "turn_queued"
                await events.aclose()
            async with AsyncClient(url.replace("watcher", "nobody"), retries=0) as client:
                with pytest.raises(AgentError) as refused:
                    await client.submit("s", "x")
            assert "watcher" not in str(refused.value)


async def test_durability_that_may_not_be_read_is_said_to_be_that(server_kind):
    with RedisServer(server_kind, appendonly=True, appendfsync="always") as server:
        async with open_redis(server.url) as redis:
            check_redis(await read_redis(redis), "fsync")
            await redis.execute_command(
                "ACL", "SETUSER", "w", "reset", "on", ">pw", "~*", "&*", "+@all", "-config"
            )
        async with open_redis(server.url.replace("://", "://w:pw@")) as redis:
            facts = await read_redis(redis)
            check_redis(facts, "everysec")
            with pytest.raises(StoreUnsupported, match=r"config\|get"):
                check_redis(facts, "fsync")
