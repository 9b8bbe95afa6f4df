"""One worker process: it claims turns, holds their leases, runs them and writes their outcomes."""
