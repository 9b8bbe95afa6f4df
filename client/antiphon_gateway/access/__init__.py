"""Authentication and permissions: API keys, JSON web tokens and stream tokens, each of which becomes a ``Caller``."""
