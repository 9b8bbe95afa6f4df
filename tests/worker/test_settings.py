"""Settings: flags over variables over defaults, and errors that name the variable and the fix."""

import pytest

from antiphon.errors import SettingsError
from antiphon.settings import parse_seconds
from antiphon_worker.settings import Settings


def test_flags_win_over_variables_and_variables_over_defaults():
    settings = Settings.load({"concurrency": "7"}, {"ANTIPHON_CONCURRENCY": "8", "ANTIPHON_LEASE": "5s"})
    assert settings.concurrency == 7
    assert settings.lease == 5.0
    assert settings.drain == 25.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("500ms", 0.5), ("5m", 300), ("1h", 3600), (" 1.5 s ", 1.5)],
)
def test_durations_have_units(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ANTIPHON_CONCURRENCY", "0"),
        ("ANTIPHON_CONCURRENCY", "many"),
        ("ANTIPHON_PROCESSES", "-1"),
        ("ANTIPHON_LEASE", "soon"),
        ("ANTIPHON_LEASE", "10ms"),
        ("ANTIPHON_DURABILITY", "maybe"),
        ("ANTIPHON_QUEUES", "a b"),
        ("ANTIPHON_QUEUES", ","),
        ("ANTIPHON_PREFIX", "a:b"),
        ("ANTIPHON_CELLS", "redis://elsewhere:6379/0"),
        ("ANTIPHON_LOG_LEVEL", "loud"),
        ("ANTIPHON_TRACES", "ture"),
    ],
)
def test_a_wrong_setting_is_named_with_its_variable(variable, value):
    with pytest.raises(SettingsError, match=variable):
        Settings.load({}, {variable: value})


def test_settings_travel_to_a_child_as_variables_and_come_back_the_same():
    settings = Settings.load(
        {}, {"ANTIPHON_QUEUES": "fast, slow", "ANTIPHON_LEASE": "2500ms", "ANTIPHON_PROCESSES": "3"}
    )
    assert Settings.load({}, settings.environ()) == settings


def test_several_cells_are_split_at_commas_but_sentinel_hosts_are_not():
    settings = Settings.load(
        {}, {"ANTIPHON_REDIS_URL": "redis+sentinel://h1,h2:26380/main/0,redis://b:6379/1"}
    )
    assert settings.redis_urls == ["redis+sentinel://h1,h2:26380/main/0", "redis://b:6379/1"]


def test_a_worker_of_a_part_of_a_cluster_knows_all_cells():
    part = Settings(redis_url="redis+cluster://h:1?cells=4&cell=1-2", durability="replicated")
    part.check()
    assert [url.rpartition("=")[2] for url in part.redis_urls] == ["1", "2"]
    assert [url.rpartition("=")[2] for url in part.cell_urls] == ["0", "1", "2", "3"]
    beside = Settings(redis_url="redis://i:1?names=cell-0,redis+cluster://h:1?cells=4&cell=1-3")
    assert beside.cell_urls == beside.redis_urls
