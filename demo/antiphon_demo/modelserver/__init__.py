"""A model server without a model, which speaks three wire formats over HTTP.

It replaces a model service in the demo, the benchmark and the tests, with the same SDK clients. Its answers depend
only on the conversation (``reply_to``), so that a checker can prove that the model received the whole history and
nothing else.

>>> async with ModelServer(Behaviour(pace=50)) as server:
...     client = AsyncOpenAI(base_url=server.openai_url, api_key="any")

``python -m antiphon_demo.modelserver --pace 50`` runs one in a process of its own, and prints its URLs as
a line of JSON. ``directives.py`` lists what a user's text can request.
"""

from antiphon_demo.modelserver.answers import reply_to
from antiphon_demo.modelserver.directives import Behaviour
from antiphon_demo.modelserver.server import ModelServer, Statistics

__all__ = ["Behaviour", "ModelServer", "Statistics", "reply_to"]
