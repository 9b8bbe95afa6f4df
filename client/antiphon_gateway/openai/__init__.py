"""OpenAI-compatible API over sessions and turns: Open Responses, conversations, chat completions, models."""
