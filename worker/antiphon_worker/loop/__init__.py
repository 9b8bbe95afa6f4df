"""The agent loop: call the model, run its tool calls, repeat until it has answered."""
