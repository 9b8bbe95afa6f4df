"""The HTTP layer, independent of sessions: routes, bodies, limits and open streams."""
