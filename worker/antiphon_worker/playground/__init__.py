"""What is needed to try Antiphon without a server or a key: a Valkey, a model server and the demo."""
