"""Whether workers may stop because nothing needs the revisions of their agents any more."""

from __future__ import annotations

import logging
from collections.abc import Collection

from antiphon.client import AgentRevision, AsyncClient
from antiphon.errors import AgentError
from antiphon_worker.settings import Settings

log = logging.getLogger("antiphon.supervisor")


async def may_stop(settings: Settings, workers: Collection[str]) -> bool:
    """Return whether these workers are needed for no revision of their agents. False while Redis cannot tell."""
    try:
        async with AsyncClient(settings.cell_urls, prefix=settings.prefix) as client:
            # Counting sessions reads all of them: only where nothing else needs it.
            for sessions in (False, True):
                found = [one async for one in client.agents(sessions=sessions)]
                if not are_unneeded(found, workers):
                    return False
    except AgentError as exc:
        log.warning("it cannot be read whether the workers may stop: %s", exc, extra={"action": "outage"})
        return False
    return True


def are_unneeded(found: Collection[AgentRevision], workers: Collection[str]) -> bool:
    """Return whether these workers may stop: each has a revision that nothing needs, and others have all the rest.

    The others are workers that are not to stop themselves.
    """
    stopping = {worker for one in found if not one.needed_by for worker in one.workers}
    if not workers or not stopping.issuperset(workers):
        return False
    ours = [one for one in found if not set(workers).isdisjoint(one.workers)]
    return all(not stopping.issuperset(one.workers) for one in ours if one.needed_by)
