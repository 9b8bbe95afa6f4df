"""Tools to try Antiphon without a server or an API key: a Valkey, a model server and the demo."""
