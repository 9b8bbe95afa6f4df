"""Replaces the generated part of a page, between ``<!-- NAME: … -->`` and ``<!-- end of NAME -->``."""


def with_block(page: str, name: str, block: str) -> str:
    """Return the page with ``block`` between its marks. Raises ``ValueError`` if the page has no such marks."""
    before, found, rest = page.partition(f"<!-- {name}:")
    first_line, _, rest = rest.partition("\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not found or not end:
        raise ValueError(f"the page has no place between <!-- {name}: … --> and <!-- end of {name} -->")
    return f"{before}{found}{first_line}\n{block}\n{end}{after}"
