"""What a whole cell lists: sessions, workers, failed and delayed turns, schedules, and notices of ends."""
