"""The commands that show a deployment at work: workers, queues, turns and failures, and a conversation as it goes."""
