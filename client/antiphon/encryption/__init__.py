"""Encryption at rest: encrypts content before it reaches Redis or an archive, and decrypts it.

``keyring`` has the keys, ``cipher`` the algorithm, ``sealing`` makes sealed values and opens them, and ``contents``
says what is sealed in each kind of record.
"""

from __future__ import annotations

from antiphon.encryption.keyring import KEYS_VARIABLE, Key, Keyring, new_key, use_keys

__all__ = ["KEYS_VARIABLE", "Key", "Keyring", "new_key", "use_keys"]
