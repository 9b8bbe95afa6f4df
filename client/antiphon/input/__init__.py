"""Checks values passed by callers, once, and converts them to their stored form."""
