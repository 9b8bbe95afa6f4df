"""What operators can observe of workers, on request: metrics, health and traces, without user content."""
