"""Metrics, health and traces of workers, without user content unless an operator asks for it."""
