"""What the commands share that run until they are stopped: their log, and a port that tells how they are."""
