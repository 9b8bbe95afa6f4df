"""``antiphon batch``: runs a turn for each line of a file, shows how far it is, and writes the outcomes."""
