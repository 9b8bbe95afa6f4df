"""One worker process: claims turns, holds their leases, runs them and writes their outcomes."""
