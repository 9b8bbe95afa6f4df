"""The public names for submitting turns and following sessions: ``AsyncClient``, ``Client`` and what they return.

async with AsyncClient("redis://localhost:6379/0") as client:
    turn = await client.submit("user-123", "Hello", agent="support")
    async for event in turn.stream():
        ...
"""

from __future__ import annotations

from antiphon.async_client import AsyncClient, SessionSnapshot
from antiphon.model.feedback import Feedback, Figures
from antiphon.model.recording import KeptRequest, Variant, VariantRun
from antiphon.model.revisions import Promotion
from antiphon.redis.agents import AgentRevision, AsyncAgents
from antiphon.redis.all_events import AllEvents, FollowedEvent
from antiphon.redis.budgets import AsyncBudgets, BudgetPage, StoredBudget
from antiphon.redis.deployment import TenantLimits
from antiphon.redis.erasure import Forgotten
from antiphon.redis.facts import AsyncFacts, Fact
from antiphon.redis.failed import FailedTurn
from antiphon.redis.feedback import RatedTurn
from antiphon.redis.schedules import AsyncSchedules, Schedule
from antiphon.redis.search import SearchHit, SearchPage
from antiphon.redis.submission import Submission
from antiphon.redis.webhooks import AsyncWebhooks, Webhook
from antiphon.session.turn_info import TurnTree
from antiphon.stores.words import Excerpt
from antiphon.sync_client import Agents, Budgets, Client, Facts, Schedules, Webhooks
from antiphon.wire.lists.inspection import DueTurn
from antiphon.wire.records import DEFAULT_QUEUE
from antiphon.wire.suspension import SuspendedTurn

__all__ = [
    "DEFAULT_QUEUE", "AgentRevision", "Agents", "AllEvents", "AsyncAgents", "AsyncBudgets", "AsyncClient",
    "AsyncFacts", "AsyncSchedules", "AsyncWebhooks", "BudgetPage", "Budgets", "Client", "DueTurn", "Excerpt",
    "Fact", "Facts", "FailedTurn", "Feedback", "Figures", "FollowedEvent", "Forgotten", "KeptRequest",
    "Promotion", "RatedTurn", "Schedule", "Schedules", "SearchHit", "SearchPage", "SessionSnapshot",
    "StoredBudget", "Submission", "SuspendedTurn", "TenantLimits", "TurnTree", "Variant", "VariantRun", "Webhook",
    "Webhooks",
]  # fmt: skip
