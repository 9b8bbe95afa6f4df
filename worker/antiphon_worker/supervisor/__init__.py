"""The parent process: it starts worker processes, replaces dead ones and keeps spare ones ready."""
