"""Checks the values that callers pass in, once, and converts them to their stored form."""
