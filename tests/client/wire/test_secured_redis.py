"""Servers that let nobody in who does not belong: users, TLS with certificates of clients, passwords of Sentinels."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
from urllib.parse import urlencode

import pytest
from redis import Redis
from redis.exceptions import RedisError
from support.ensemble import agent_spec, open_ensemble
from support.eventually import wait_until, wait_until_async
from support.network import free_port
from support.servers import RedisServer, Sentinel

from antiphon.client import AsyncClient
from antiphon.errors import AgentError, StoreError
from antiphon.redis import subscription
from antiphon.wire.acl import user_rule
from antiphon.wire.connection.open import open_redis

has_tls = pytest.mark.skipif(
    not shutil.which("redis-server") or not shutil.which("openssl"), reason="no redis-server with TLS"
)
PASSWORD = "pass/word"
ROLES = {"worker": {}, "client": {}, "operator": {}, "subscriber": {"sessions": "acme-"}}
# Who copies the data, and who watches the server: what the pages of Redis say that they need.
WATCHES = """
+multi +slaveof +ping +exec +subscribe +config|rewrite +role
+publish +info +client|setname +client|kill +script|kill
"""
SERVANTS = [
    f"user replica on >{PASSWORD} +psync +replconf +ping",
    f"user sentinel on >{PASSWORD} allchannels {' '.join(WATCHES.split())}",
    f"user admin on >{PASSWORD} ~* &* +@all",
]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, a certificate of a server and a client, and one that another authority gave."""
    if not shutil.which("openssl"):
        return None
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*argv):
        subprocess.run(["openssl", *map(str, argv)], check=True, capture_output=True, cwd=folder)

    for authority in ("ca", "other"):
        openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{authority}.key", "-out", f"{authority}.pem",
            "-days", "2", "-subj", f"/CN={authority}",
        )  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name, authority in (("server", "ca"), ("mine", "ca"), ("theirs", "other")):
        key, request = f"{name}.key", f"{name}.csr"
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", "/CN=n")
        openssl(
            "x509", "-req", "-in", request, "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-out",
            f"{name}.pem", "-days", "2", "-extfile", "names", "-CAcreateserial",
        )  # fmt: skip
    return folder


def of_a_server(folder, port):
    """The settings of a server that speaks TLS on this port, and only to clients with a certificate."""
    return {
        "tls-port": str(port), "tls-cert-file": str(folder / "server.pem"), "tls-key-file": str(folder / "server.key"),
        "tls-ca-cert-file": str(folder / "ca.pem"), "tls-auth-clients": "yes", "tls-replication": "yes",
    }  # fmt: skip


def of_a_client(folder, name="mine", authority="ca"):
    """The options of a URL with which a client shows its certificate."""
    return {
        "ssl_ca_certs": str(folder / f"{authority}.pem"), "ssl_certfile": str(folder / f"{name}.pem"),
        "ssl_keyfile": str(folder / f"{name}.key"), "ssl_check_hostname": "true",
    }  # fmt: skip


class Secured:
    """A primary and its replica behind a Sentinel. All ask for users; where the server has TLS, all speak it alone."""

    def __init__(self, kind, folder, directory):
        self.kind, self._folder, self._directory = kind, folder, directory
        self.tls = kind == "redis" and folder is not None

    @contextlib.contextmanager
    def running(self):
        with (
            self._server("primary", None) as primary,
            self._server("replica", self._place(primary)) as replica,
        ):
            self.primary, self.replica = primary, replica
            connected = lambda: "slave0" in self.admin(primary).info("replication")  # noqa: E731
            wait_until(connected, 20, "the replica is connected")
            with self._sentinel():
                yield self

    @contextlib.contextmanager
    def _server(self, name, source):
        users = self._directory / f"{name}.acl"
        users.write_text("user default on nopass ~* &* +@all\n")
        config = {"aclfile": str(users), "masteruser": "replica", "masterauth": PASSWORD,
                  "repl-diskless-sync-delay": "0"}  # fmt: skip
        if source is not None:
            config["replicaof"] = f"127.0.0.1 {source}"
        if self.tls:
            config |= of_a_server(self._folder, free_port())
        with RedisServer(self.kind, config=config) as server:
            rules = [f"user {user_rule(role, role, PASSWORD, **more)}" for role, more in ROLES.items()]
            users.write_text("\n".join(["user default off", *SERVANTS, *rules, ""]))
            with Redis.from_url(server.url) as redis:
                redis.execute_command("ACL LOAD")
            yield server

    @contextlib.contextmanager
    def _sentinel(self):
        sentinel = GuardedSentinel(self.primary, down_after_ms=600)
        name = sentinel.master_name
        sentinel.place = free_port() if self.tls else sentinel.port
        if self.tls:
            sentinel.config |= of_a_server(self._folder, sentinel.place)
        sentinel._watch[0] = f"sentinel monitor {name} 127.0.0.1 {self._place(self.primary)} 1"
        sentinel._watch += [
            f"sentinel auth-user {name} sentinel",
            f"sentinel auth-pass {name} {PASSWORD}",
            f"user asker on >{PASSWORD} ~* &* +@all",
            "user default off",
        ]
        self.sentinel = sentinel
        with sentinel:
            knows = lambda: len(self.asked("SENTINEL", "replicas", name)) == 1  # noqa: E731
            wait_until(knows, 30, "the Sentinel knows the replica")
            yield

    def _place(self, server):
        return int(server.config["tls-port"]) if self.tls else server.port

    def admin(self, server):
        return Redis("127.0.0.1", server.port, username="admin", password=PASSWORD, decode_responses=True)

    def asked(self, *command):
        """What the Sentinel answers to whoever may ask it."""
        more = of_a_client(self._folder) | {"ssl": True, "ssl_check_hostname": True} if self.tls else {}
        with Redis("127.0.0.1", self.sentinel.place, username="asker", password=PASSWORD, **more) as redis:
            return redis.execute_command(*command)

    def url(self, user, password=PASSWORD, **more):
        options = {"sentinel_username": "asker", "sentinel_password": PASSWORD}
        options |= (of_a_client(self._folder) if self.tls else {}) | more
        scheme = "rediss+sentinel" if self.tls else "redis+sentinel"
        place = f"127.0.0.1:{self.sentinel.place}/{self.sentinel.master_name}/0"
        return f"{scheme}://{user}:{password.replace('/', '%2F')}@{place}?{urlencode(options)}"

    def is_primary(self, server):
        try:
            with self.admin(server) as redis:
                return redis.info("replication")["role"] == "master"
        except RedisError:
            return False


class GuardedSentinel(Sentinel):
    """It answers nobody without a password, so that only its port says that it runs."""

    place = 0

    def _answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.place), timeout=1):
            return True
        return False


@pytest.fixture
def secured(server_kind, certificates, tmp_path, monkeypatch):
    monkeypatch.setitem(open_redis.__kwdefaults__, "timeout_seconds", 1.0)
    monkeypatch.setattr(subscription, "SILENCE_SECONDS", 1.0)
    with Secured(server_kind, certificates, tmp_path).running() as stand:
        yield stand


async def collect(url, session, seen):
    async with AsyncClient(url) as reader:
        async for event in reader.subscribe(session, 0):
            seen.append(event)


async def test_a_turn_goes_on_over_a_fail_over_with_users_tls_and_passwords_everywhere(secured, tmp_path):
    async with (
        open_ensemble(secured.url("client"), tmp_path / "stage") as ensemble,
        ensemble.worker(url=secured.url("worker"), lease=2),
    ):
        seen = []
        reader = asyncio.create_task(collect(secured.url("subscriber"), "acme-1", seen))
        before = await ensemble.submit("acme-1", "before it")
        await before.result(60)
        turn = await ensemble.submit("acme-1", "go on gate:g words:5")
        await ensemble.waits("g")
        await wait_until_async(lambda: len(seen) >= 6)
        written = secured.admin(secured.primary).info("replication")["master_repl_offset"]
        copied = lambda: secured.admin(secured.replica).info("replication")["slave_repl_offset"] >= written  # noqa: E731
        await wait_until_async(copied, 10, "the replica has all that was done")
        secured.primary.kill()
        await wait_until_async(lambda: secured.is_primary(secured.replica), 30, "the replica is the primary")
        secured.asked("SENTINEL", "SET", secured.sentinel.master_name, "down-after-milliseconds", "60000")
        ensemble.stage.open("g")
        await turn.result(60)
        await (await ensemble.submit("acme-1", "after it")).result(60)
        events = await ensemble.events("acme-1")
        await wait_until_async(
            lambda: len(seen) >= len(events) or reader.done(), 15, "it has seen everything"
        )
        assert [event.to_json() for event in seen] == [event.to_json() for event in events]
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await ensemble.whole("acme-1")
        async with AsyncClient(secured.url("subscriber"), retries=0) as other:
            with pytest.raises(AgentError, match="may not do"):
                await anext(other.subscribe("other-1", after=0))


async def test_a_wrong_password_of_either_is_refused_and_not_told(secured):
    wrong = "not/the/one"
    for url in (
        secured.url("client", wrong),
        secured.url("client", sentinel_password=wrong),
        secured.url("nobody"),
    ):
        async with AsyncClient(url, retries=0) as client:
            with pytest.raises(StoreError) as refused:
                await client.submit("s", "Hello", agent=agent_spec())
        assert wrong not in str(refused.value)
        assert PASSWORD not in str(refused.value)
    with pytest.raises(RedisError):
        Redis("127.0.0.1", secured.replica.port).ping()


@has_tls
async def test_tls_is_refused_without_the_right_certificates(certificates, tmp_path):
    users = tmp_path / "users.acl"
    users.write_text("user default on nopass ~* &* +@all\n")
    port = free_port()
    with RedisServer("redis", config={"aclfile": str(users), **of_a_server(certificates, port)}) as server:
        users.write_text(f"user default off\nuser {user_rule('client', 'client', PASSWORD)}\n")
        with Redis.from_url(server.url) as redis:
            redis.execute_command("ACL LOAD")

        def url(scheme="rediss", password=PASSWORD, **options):
            return f"{scheme}://client:{password.replace('/', '%2F')}@127.0.0.1:{port}/0?{urlencode(options)}"

        async with AsyncClient(url(**of_a_client(certificates))) as client:
            turn = await client.submit("s", "Hello", agent="any", delay=60)
            assert await turn.cancel() == "cancelled"
        ca = {"ssl_ca_certs": str(certificates / "ca.pem")}
        for wrong in (
            url(**ca),  # no certificate of its own
            url(**of_a_client(certificates, "theirs")),  # one of another authority
            url(**of_a_client(certificates, authority="other")),  # it believes another authority
            url("redis"),  # no TLS
            url(password="wrong", **of_a_client(certificates)),
        ):
            async with AsyncClient(wrong, retries=0) as client:
                with pytest.raises(StoreError) as refused:
                    await client.submit("s", "Hello", agent="any")
            assert PASSWORD not in str(refused.value)
