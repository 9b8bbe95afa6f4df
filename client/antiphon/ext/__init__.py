"""Adapters to other frameworks: each module needs its framework, which is an extra of its own."""
