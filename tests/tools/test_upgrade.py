"""A short run of `make upgrade` in every test run."""

import pytest
from chaos.plan import make_plan
from support.releases import PREVIOUS, THIS, prepare
from upgrade.rolling import Rolling, checked, rolling_plan


def test_hosts_are_stopped_and_killed_in_turn_whatever_else_happens():
    kinds = [fault.kind for fault in rolling_plan(make_plan(1, 30), 30) if "host" in fault.kind]
    assert kinds == ["restart host", "restart host", "kill host", "kill host"] * 2


@pytest.mark.short
@pytest.mark.one_server
@pytest.mark.timeout(300)  # the first one prepares the older release
async def test_every_promise_holds_while_hosts_go_from_one_release_to_the_other(tmp_path):
    if reason := prepare():
        pytest.skip(reason)
    with Rolling(3, 15, tmp_path) as run:
        report = await checked(run)
    print(report.table(), run.passed_on)
    assert report.ok, report.table()
    assert {PREVIOUS.version, THIS.version} <= run.passed_on.keys()
