"""The OpenAI Agents SDK: its sessions in ours. Needs ``antiphon[openai-agents]``."""

from antiphon.ext.openai_agents.session import AntiphonSession

__all__ = ["AntiphonSession"]
