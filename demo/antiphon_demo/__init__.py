"""Tools to try Antiphon without a server or an API key: the demo, an embedded Valkey and a model server.

The demo runs conversations on real processes, kills one of them, and checks the guarantees. It starts an embedded
Valkey, a model server (or uses the real service, if its API key is set), ``antiphon worker`` and ``antiphon serve``;
this process is the client. ``stage`` starts them, ``play`` runs the turns, ``accident`` kills a worker, ``verdict``
checks the guarantees, and ``screen`` prints the progress.
"""
