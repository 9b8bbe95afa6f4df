"""Our own interface: sessions, turns and events over HTTP, and the document that describes it."""
