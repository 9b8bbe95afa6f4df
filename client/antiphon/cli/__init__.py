"""The ``antiphon`` command: it parses arguments, calls the client and prints what comes back."""
