"""The assistant of these examples, for the workers: it repeats what it is told, word by word."""

from antiphon import Agent
from antiphon_worker import App

app = App(agents=[Agent("scripted", "any", name="assistant", pause=0.2)])
