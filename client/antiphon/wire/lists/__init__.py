"""Lists of a whole cell: sessions, workers, failed and delayed turns, schedules, and completion events."""
