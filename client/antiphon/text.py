"""Text that was read from Redis."""


def text_of(data: bytes | None) -> str:
    r"""Return a text, an id or a name from Redis, "" for none. Bytes that are not UTF-8 are escaped.

    Anyone may write to a Redis, and no name there may end the process that reads it. An escaped name leads to no key.

    >>> text_of(b"ant\xff")
    'ant\\xff'
    """
    return (data or b"").decode(errors="backslashreplace")
