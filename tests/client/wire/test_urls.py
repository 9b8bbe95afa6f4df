"""The kinds of URL that name a Redis."""

from support.servers import RedisServer

from antiphon import Client


def test_a_redis_is_reached_over_its_unix_socket(server_kind, tmp_path):
    path = tmp_path / "s"
    with RedisServer(server_kind, config={"unixsocket": str(path)}), Client(f"unix://{path}") as client:
        turn = client.submit("s", "x", queue="nowhere")
        assert turn.status() == "queued"
        assert next(client.subscribe("s", after=0)).turn_id == turn.id
