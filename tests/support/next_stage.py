"""The stage in a release that knows one version more of everything that a turn consists of."""

from __future__ import annotations

from support import stage

from antiphon.input import versions

__all__ = ["app"]

versions.KNOWN.update({kind: known + 1 for kind, known in versions.KNOWN.items()})
app = stage.app
