"""Encryption at rest: encrypts content before it reaches Redis or an archive, and decrypts it.

``keyring`` has the keys and the algorithm, ``values`` encrypts single values, and ``records`` has the table of what
is encrypted in each kind of record.
"""

from __future__ import annotations

from antiphon.encryption.keyring import KEYS_VARIABLE, Key, Keyring, new_key, use_keys

__all__ = ["KEYS_VARIABLE", "Key", "Keyring", "new_key", "use_keys"]
