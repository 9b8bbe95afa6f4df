# Instructions for coding agents

This project runs LLM sessions on [Antiphon](.agents/skills/antiphon/SKILL.md), Redis and RQ. Read that skill before you
change agents, tools, clients or tests.

- Run `pytest` after each change. The tests use scripted answers: never call a model service in a test.
- Keep agents and tools in `app.py`. Clients name an agent and never import `app.py`.
- Never commit `.env`.
