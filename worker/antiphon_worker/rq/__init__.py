"""RQ beside us: jobs that its own tools put into our queues, and how our workers appear in those tools."""
