"""Tools: functions that a model may call.

    @tool
    def get_weather(city: str, unit: Literal["c", "f"] = "c") -> str:
        '''Say what the weather is like.

        Args:
            city: The city's name.
        '''

The JSON schema comes from the signature and the description from the docstring. A parameter annotated ``Context`` is
not part of the schema: the runtime fills it in.
"""

from antiphon.model import CallerTool
from antiphon.tools.context import Context
from antiphon.tools.functions import Tool, tool
from antiphon.tools.waiting import sleep, wait_for_event

__all__ = ["CallerTool", "Context", "Tool", "sleep", "tool", "wait_for_event"]
