"""The operator dashboard, ``/live``: its files, and the headers that prevent other code from running in it."""
