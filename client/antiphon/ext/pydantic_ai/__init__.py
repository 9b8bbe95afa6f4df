"""pydantic-ai: its agents run our turns, a store of its conversations, and message histories in both directions.

Needs ``antiphon[pydantic-ai]``.
"""

from antiphon.ext.pydantic_ai.messages import messages_of, model_messages
from antiphon.ext.pydantic_ai.runner import PydanticAIRunner
from antiphon.ext.pydantic_ai.store import AntiphonConversationStore

__all__ = ["AntiphonConversationStore", "PydanticAIRunner", "messages_of", "model_messages"]
