"""OpenAI's Chat Completions interface: each request brings its whole conversation, and is a session of its own."""
