"""The demo: conversations on real processes, one of which is killed, and a check of the guarantees.

It runs an embedded Valkey, a model server (or the real service, if its API key is set), ``antiphon worker``,
``antiphon serve`` with its page, and this process as the client. ``stage`` starts them, ``play`` runs the turns,
``accident`` kills a worker, ``checks`` checks the guarantees, and ``screen`` prints the progress.
"""
