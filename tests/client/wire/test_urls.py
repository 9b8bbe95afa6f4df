"""The kinds of URL that name a Redis."""

import pytest
from support.servers import RedisServer

from antiphon import Client
from antiphon.errors import SettingsError
from antiphon.wire.connection.open import OBJECTS, cell_urls, open_redis, with_durability

PLACES = [
    "redis://h:1/0?", "rediss://h:1/0?", "redis://u:p@h:1/0?", "unix:///s?", "redis+sentinel://h:1/n/0?",
    "redis+cluster://h:1/?cells=2&",
]  # fmt: skip


def opened(url):
    return [open_redis(one) for one in cell_urls(url)]


def refusal(url):
    with pytest.raises(SettingsError) as refused:
        opened(url)
    return str(refused.value)


def test_a_redis_is_reached_over_its_unix_socket(server_kind, tmp_path):
    path = tmp_path / "s"
    with RedisServer(server_kind, config={"unixsocket": str(path)}), Client(f"unix://{path}") as client:
        turn = client.submit("s", "x", queue="nowhere")
        assert turn.status() == "queued"
        assert next(client.subscribe("s", after=0)).turn_id == turn.id


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["passwort", "soket_timeout", "kwargs", *sorted(OBJECTS)])
def test_an_unknown_option_is_named_without_its_value_in_one_sentence(place, name):
    said = refusal(f"{place}{name}=hunter2")
    assert said.endswith(f" has the unknown option {name!r}.")
    assert not any(word in said for word in ("hunter2", "__", "argument", ".."))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["db", "socket_timeout", "max_connections", "health_check_interval"])
def test_an_option_with_a_wrong_value_is_named(place, name):
    said = refusal(f"{place}{name}=hunter2")
    assert "hunter2" not in said
    assert said.endswith(f" has an invalid value for the option {name!r}.")


def test_what_is_no_number_is_refused_without_words_of_python():
    for url in ("redis+sentinel://h:x/n", "redis+sentinel://h/n/x"):
        assert refusal(url).endswith(" cannot be read: ports and databases must be numbers.")


def test_options_of_tls_need_a_url_of_tls():
    assert refusal("redis://h/0?ssl_ca_certs=ca.pem").endswith(
        " has the unknown option 'ssl_ca_certs'; options of TLS need a URL that begins with rediss."
    )
    assert "invalid value" in refusal("rediss://h/0?ssl_cert_reqs=bogus")


def test_a_name_that_may_be_part_of_a_password_is_not_shown():
    assert "hunter2" not in refusal("redis://:a@b?hunter2=d@h/0")


@pytest.mark.parametrize(
    ("url", "promise", "told"),
    [
        ("redis://h/0", "replicated", "redis://h/0?durability=replicated"),
        ("redis://h/0?ssl=1", "replicated", "redis://h/0?ssl=1&durability=replicated"),
        ("redis://h/0?durability=", "replicated", "redis://h/0?durability="),
        ("redis://h/0", "", "redis://h/0"),
        ("", "replicated", ""),
    ],
)
def test_a_url_is_given_the_durability_that_it_does_not_have(url, promise, told):
    assert with_durability(url, promise) == told
