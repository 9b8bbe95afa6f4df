"""What HTTP needs and sessions do not know of: routes, bodies, limits and open streams."""
