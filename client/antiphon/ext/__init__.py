"""Adapters to other frameworks; each module needs its framework, installed as an extra."""
