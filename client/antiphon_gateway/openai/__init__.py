"""OpenAI's interfaces over sessions and turns: responses by the Open Responses specification, conversations, models."""
