"""Determines whether workers may stop because nothing needs the revisions of their agents anymore."""

from __future__ import annotations

import logging
from collections.abc import Collection

from antiphon.client import AgentRevision, AsyncClient
from antiphon.errors import AgentError
from antiphon_worker.settings import Settings

log = logging.getLogger("antiphon.supervisor")


async def may_stop(settings: Settings, workers: Collection[str]) -> bool:
    """Return whether no revision of their agents needs these workers. False if Redis cannot be read."""
    try:
        async with AsyncClient(settings.cell_urls, prefix=settings.prefix) as client:
            # Counting sessions reads all of them: do it only if nothing else needs the revisions.
            for sessions in (False, True):
                found = [one async for one in client.agents(sessions=sessions)]
                if not are_unneeded(found, workers):
                    return False
    except AgentError as exc:
        log.warning("it cannot be read whether the workers may stop: %s", exc, extra={"action": "outage"})
        return False
    return True


def are_unneeded(found: Collection[AgentRevision], workers: Collection[str]) -> bool:
    """Return whether these workers may stop: each has a revision that nothing needs, and others have the needed ones.

    The others are workers that are not stopping themselves.
    """
    stopping = {worker for one in found if not one.needed_by for worker in one.workers}
    if not workers or not stopping.issuperset(workers):
        return False
    ours = [one for one in found if not set(workers).isdisjoint(one.workers)]
    return all(not stopping.issuperset(one.workers) for one in ours if one.needed_by)
