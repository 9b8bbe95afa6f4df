"""Checks callers' values once, and converts them to their stored form."""
