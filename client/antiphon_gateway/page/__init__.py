"""The page of operators, ``/live``: its files, and the headers that let nothing else run in it."""
