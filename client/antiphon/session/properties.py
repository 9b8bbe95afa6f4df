"""What a session keeps beside its history: variables, metadata, files, its system prompt, and whose it is."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.errors import UsageError
from antiphon.model import File
from antiphon.session.background import call
from antiphon.session.runtime import Edit, SessionStatus, plain
from antiphon.session.saved import SavedSession
from antiphon.session.turns import TurnTaking, check_if_busy
from antiphon.session.variables import Metadata, Variables

__all__ = ["Keeping"]


class Keeping(TurnTaking):
    """What ``Session`` keeps."""

    @property
    def variables(self) -> Variables:
        """The variables, to read and to set: ``session.variables["user"] = "Alice"``.

        ``{user}`` in the system prompt becomes its value, and tools find and change them in their ``Context``.

        >>> session.variables["user"] = "Alice"
        >>> session.variables
        {'user': 'Alice'}
        """
        return Variables(self, call(self._saved()).variables)

    async def variables_async(self) -> dict[str, Any]:
        """A copy of the variables.

        >>> await session.variables_async()
        {}
        """
        return (await self._saved()).variables

    def set_variables(self, variables: Mapping[str, Any], *, remove: Sequence[str] = ()) -> None:
        """Set some variables, and take others away, at once.

        >>> session.set_variables({"user": "Alice", "language": "French"})
        >>> session.set_variables({"user": "Bob"}, remove=["language"])
        >>> session.variables
        {'user': 'Bob'}
        """
        call(self.set_variables_async(variables, remove=remove))

    async def set_variables_async(self, variables: Mapping[str, Any], *, remove: Sequence[str] = ()) -> None:
        """``set_variables``, awaited.

        >>> await session.set_variables_async({"user": "Alice"})
        """
        await self._edit(Edit(variables=plain(variables, "variables"), remove=list(remove)))

    @property
    def metadata(self) -> Metadata:
        """What the caller wants to find sessions by, to read and to set: ``session.metadata["plan"] = "paid"``.

        Models do not see it.

        >>> agent.session("user-7", metadata={"plan": "free"}).metadata
        {'plan': 'free'}
        """
        return Metadata(self, call(self._saved()).metadata)

    async def metadata_async(self) -> dict[str, Any]:
        """A copy of the metadata.

        >>> await session.metadata_async()
        {}
        """
        return (await self._saved()).metadata

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge this into the metadata.

        >>> session.set_metadata({"plan": "paid"})
        >>> session.metadata
        {'plan': 'paid'}
        """
        call(self.set_metadata_async(metadata))

    async def set_metadata_async(self, metadata: Mapping[str, Any]) -> None:
        """``set_metadata``, awaited.

        >>> await session.set_metadata_async({"plan": "paid"})
        """
        await self._edit(Edit(metadata=plain(metadata, "metadata")))

    @property
    def tenant(self) -> str | None:
        """Whose session it is.

        >>> agent.session("user-8", tenant="acme").tenant
        'acme'
        """
        return call(self._saved()).tenant

    async def tenant_async(self) -> str | None:
        """``tenant``, awaited.

        >>> await session.tenant_async() is None
        True
        """
        return (await self._saved()).tenant

    @property
    def queue(self) -> str | None:
        """The session's own queue, where its turns go unless they name one; None leaves it to the agent.

        >>> agent.session("user-9", queue="slow").queue
        'slow'
        """
        return call(self._saved()).queue

    async def queue_async(self) -> str | None:
        """``queue``, awaited.

        >>> await session.queue_async() is None
        True
        """
        return (await self._saved()).queue

    @property
    def files(self) -> dict[str, File]:
        """The files of the session by name, ready to be said: ``session.run(["Read:", session.files["a.pdf"]])``.

        >>> session.files
        {}
        """
        return call(self._saved()).files

    async def files_async(self) -> dict[str, File]:
        """``files``, awaited.

        >>> await session.files_async()
        {}
        """
        return (await self._saved()).files

    def add_file(self, file: File) -> None:
        """Keep a file under its name, by reference: its ``url`` or the provider's ``file_id``, not its bytes.

        >>> from antiphon.model import File
        >>> session.add_file(File(name="a.pdf", url="https://example.com/a.pdf"))
        >>> session.run(["Read this:", session.files["a.pdf"]]).text
        'You said: Read this:'
        """
        call(self.add_file_async(file))

    async def add_file_async(self, file: File) -> None:
        """``add_file``, awaited.

        >>> from antiphon.model import File
        >>> await session.add_file_async(File(name="b.pdf", file_id="file-42"))
        """
        if not file.name:
            raise UsageError("A file of a session needs a name: File(name=…).")
        if not (file.url or file.file_id):
            raise UsageError("A session keeps files by reference: File(url=…) or File(file_id=…).")
        await self._edit(Edit(files={file.name: copy.copy(file)}))

    @property
    def system(self) -> str | None:
        """The session's own system prompt; without one, its agent's is used.

        >>> agent.session("user-10", system="You help {user}.").system
        'You help {user}.'
        """
        return call(self._saved()).system

    async def system_async(self) -> str | None:
        """``system``, awaited.

        >>> await session.system_async() is None
        True
        """
        return (await self._saved()).system

    def status(self) -> SessionStatus:
        """What is done, what is running (with its step) and what is waiting.

        >>> status = session.status()
        >>> status.state, status.messages, status.waiting
        ('idle', 2, [])
        """
        return call(self.status_async())

    async def status_async(self) -> SessionStatus:
        """``status``, awaited.

        >>> (await session.status_async()).running is None
        True
        """
        return await (await self._ready()).status(self._ref)

    async def _saved(self) -> SavedSession:
        return await (await self._ready()).save(self._ref, messages=False)

    async def _edit(self, edit: Edit) -> None:
        check_if_busy(edit.if_busy)
        await (await self._ready()).edit(self._ref, edit)
