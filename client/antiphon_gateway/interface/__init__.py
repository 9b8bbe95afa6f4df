"""Our own API: sessions, turns and events over HTTP, and the document that describes it."""
