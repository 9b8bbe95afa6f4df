"""A short chaos run in every test run, and a plan that depends on its seed alone."""

import pytest

from chaos.__main__ import run
from chaos.driver import Chaos
from chaos.plan import FAULTS, make_plan


def test_a_seed_names_its_faults():
    assert make_plan(7, 60) == make_plan(7, 60)
    assert make_plan(7, 60) != make_plan(8, 60)
    assert {fault.kind for fault in make_plan(7, 600)} == set(FAULTS)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_every_promise_holds_while_everything_breaks(tmp_path):
    with Chaos(5, 20, tmp_path) as chaos:
        report = await run(chaos)
    print(report.table())
    assert report.ok, report.table()
    assert report.accepted > 20
