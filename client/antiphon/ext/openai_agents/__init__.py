"""The OpenAI Agents SDK: its sessions in ours, and its ``Runner`` inside a turn. Needs ``antiphon[openai-agents]``."""

from antiphon.ext.openai_agents.runner import AgentsRunner
from antiphon.ext.openai_agents.session import AntiphonSession

__all__ = ["AgentsRunner", "AntiphonSession"]
