"""Hot swap: load a changed model beside the old one, warm it up, then replace it.

Requests that have begun finish with the old model, which is freed after the last of them. A folder that cannot be read
leaves the old model in place.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertree.config.default_model import resolve_model_path
from bertree.errors import UserError
from bertree.serve.models.loading import Fingerprint, ServedSource, load_index, load_model
from bertree.serve.models.registry import Registry
from bertree.serve.models.served import ServedIndex, ServedModel


class Swapper:
    """Watches the folders of what is served."""

    def __init__(self, registry: Registry, sources: Sequence[ServedSource], note: Callable[..., Any]) -> None:
        """`note(event, **values)` hears what was swapped."""
        self.registry, self.sources, self._note = registry, list(sources), note
        self._loaded: dict[ServedSource, Fingerprint] = {source: source.fingerprint() for source in sources}
        self._seen = dict(self._loaded)
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Have everything loaded again, changed or not."""
        self._loaded.clear()
        self._asked.set()

    async def watch(self, seconds: float) -> None:
        """Look for changes every so many seconds, and whenever asked to. `seconds`: 0 to do it only when asked."""
        while True:
            try:
                async with asyncio.timeout(seconds or None):
                    await self._asked.wait()
            except TimeoutError:
                pass
            asked = self._asked.is_set()
            self._asked.clear()
            await self.check(settled=asked)

    async def check(self, settled: bool = False) -> None:
        """Load again what has changed. `settled`: do not wait until a folder has stopped changing."""
        for source in self.sources:
            now = await asyncio.to_thread(source.fingerprint)
            if not now or now == self._loaded.get(source):
                continue
            if not settled and now != self._seen.get(source):  # it may still be being written
                self._seen[source] = now
                continue
            self._loaded[source] = self._seen[source] = now
            try:
                name = await asyncio.to_thread(self._load, source)
            except (UserError, OSError) as error:
                self._note("swap failed", name=self._name(source), reason=str(error))
            else:
                self._note("swapped", name=name)

    def _name(self, source: ServedSource) -> str:
        """Return the name that something is served by, or would be: its folder's."""
        return source.index_name if source.is_index else source.name or Path(source.given).name

    def _is_needed(self, model: ServedModel) -> bool:
        """Whether a model was given, or belongs to an index, or has been replaced by another of its name."""
        given = {str(resolve_model_path(source.given)) for source in self.sources if not source.is_index}
        used = any(index.model is model for index in self.registry.indexes.values())
        return used or model.folder in given or self.registry.models.get(model.name) is not model

    def _load(self, source: ServedSource) -> str:
        if source.is_index:
            old = self.registry.indexes.get(source.index_name)
            found = load_index(source, self.registry, old)
            self.registry.put_model(found.model)
            self.registry.put_index(found)
            if old is not None and not self._is_needed(old.model):
                self.registry.drop_model(old.model.name)
            return found.name
        served = load_model(source)
        before = self.registry.models.get(served.name)
        self.registry.put_model(served)
        for index in list(self.registry.indexes.values()):
            if index.model is before and before.model.digest == served.model.digest:
                again = index.open_again(served.model)
                self.registry.put_index(ServedIndex(index.name, again, served, index.open_again))
        return served.name
