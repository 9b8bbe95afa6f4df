"""LangGraph: a checkpointer on Redis, and graphs that run our turns. Needs ``antiphon[langgraph]``."""

from antiphon.ext.langgraph.runner import GraphRunner
from antiphon.ext.langgraph.saver import AntiphonSaver

__all__ = ["AntiphonSaver", "GraphRunner"]
