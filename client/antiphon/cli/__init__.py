"""The ``antiphon`` command: parses arguments, calls the client and prints the result."""
