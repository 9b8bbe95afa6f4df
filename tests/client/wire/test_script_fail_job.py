"""`fail_job`: a job that is no turn fails where RQ's tools show it, alone."""

from rq import Queue
from rq.job import Job
from rq.registry import FailedJobRegistry
from support.cells import open_cell

from antiphon.wire.records import ForeignJob


async def test_the_job_stands_in_the_failed_registry_with_its_message(redis_url, redis):
    queue = Queue("antiphon", connection=redis)
    job = queue.enqueue("os.getcwd")
    async with open_cell(redis_url) as cell:
        await cell.set_clock(1_900_000_000_000)
        [found] = (await cell.take()).foreign
        assert found.job_id == job.id
        for _ in range(2):
            await cell.fail_job(found, "w1", 'It is "no" turn.\n')
        failed = Job.fetch(job.id, connection=redis)
        assert failed.is_failed
        assert redis.hget(failed.key, "exc_info") == b'It is "no" turn.\n'
        assert failed.latest_result().exc_string == 'It is "no" turn.\n'
        assert failed.ended_at.year == 2030
        assert FailedJobRegistry("antiphon", connection=redis).get_job_ids() == [job.id]
        assert queue.started_job_registry.get_job_ids() == []


async def test_a_job_that_has_vanished_leaves_nothing(cell):
    before = await cell.contents()
    await cell.fail_job(ForeignJob("gone", "antiphon", b""), "w1", "no turn")
    assert await cell.contents() == before
