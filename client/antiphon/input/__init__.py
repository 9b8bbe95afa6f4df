"""Checks the values of callers once, and converts them to their stored form."""
