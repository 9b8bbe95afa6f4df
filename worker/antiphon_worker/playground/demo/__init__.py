"""The demo: conversations on real processes, one of them killed, and a check of what was promised.

An embedded Valkey, a model server (or the real service, where its key is set), ``antiphon worker`` and this process
as the client. ``stage`` starts them, ``play`` speaks, ``accident`` kills, ``checks`` judges, ``screen`` shows.
"""
