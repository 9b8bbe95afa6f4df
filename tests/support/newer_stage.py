"""The stage in another release: each of its scripts has a different text, and so a different hash."""

import hashlib
from dataclasses import replace
from functools import cache

from support import stage

from antiphon.wire import scripts
from antiphon.wire.scripts import Script, load_script


@cache
def other_text(name: str, clock: str = "clock", cluster: bool = False) -> Script:
    script = load_script(name, clock, cluster)
    source = f"{script.source}\n-- another release"
    return replace(script, source=source, sha=hashlib.sha1(source.encode()).hexdigest())


scripts.load_script = other_text  # type: ignore[assignment]
app = stage.app
