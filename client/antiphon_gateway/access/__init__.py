"""Who may what: API keys, JSON web tokens and tokens for one stream, each of which becomes a ``Caller``."""
