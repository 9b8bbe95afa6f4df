"""The App of examples/classify.py with a scripted model: texts with "Hmm" are doubtful, all others are praise."""

from classify import classifier

from antiphon import Agent
from antiphon.testing import script, tool_call
from antiphon_worker import App


def answer(request):
    results = [one for message in request.messages for one in message.tool_results]
    if results:
        return results[-1].text
    text = request.messages[-1].text
    return tool_call("ask_person", text=text) if text.startswith("Hmm") else "praise"


app = App(
    agents=[
        Agent(
            script(answer, repeat=True), "any", name=classifier.name, system=classifier.system,
            caller_tools=classifier.caller_tools,
        )
    ]
)  # fmt: skip
