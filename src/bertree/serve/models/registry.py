"""What is served, by name. A swap replaces an entry; requests that hold the old one finish with it."""

from bertree.errors import UserError, listed, suggest
from bertree.serve.models.abilities import ABILITIES
from bertree.serve.models.served import ServedIndex, ServedModel


class NotServed(Exception):
    """There is no model or index of that name."""


class Registry:
    """Models and indexes by name, in the order given."""

    def __init__(self) -> None:
        self.models: dict[str, ServedModel] = {}
        self.indexes: dict[str, ServedIndex] = {}

    def put_model(self, served: ServedModel) -> None:
        """Add a model, or replace the one of its name."""
        self.models = {**self.models, served.name: served}

    def drop_model(self, name: str) -> None:
        """Remove a model."""
        self.models = {known: served for known, served in self.models.items() if known != name}

    def put_index(self, served: ServedIndex) -> None:
        """Add an index, or replace the one of its name."""
        self.indexes = {**self.indexes, served.name: served}

    def model(self, name: str | None = None, does: str | None = None) -> ServedModel:
        """Return a model by name; without one, the first that can do what is asked.

        NotServed if there is none of that name; UserError if it cannot do that."""
        if name is not None and (found := self.models.get(name)) and (does is None or does in found.does):
            return found
        able = [m for m in self.models.values() if does is None or does in m.does]
        if name is None:
            if able:
                return able[0]
            what = f" that can {ABILITIES[does]}" if does else ""
            raise UserError(f"model: no model{what} is served here; served: {listed(self.models) or 'none'}")
        if name not in self.models:
            raise NotServed(f"model: '{name[:60]}' is not served here; {suggest(name[:60], self.models)}")
        assert does is not None
        others = f"these can: {listed(m.name for m in able)}" if able else "no served model can"
        raise UserError(f"model: '{name}' cannot {ABILITIES[does]}; {others}")

    def index(self, name: str | None = None) -> ServedIndex:
        """Return an index by name; without one, the first."""
        if name is None:
            if not self.indexes:
                raise UserError("index: no index is served here; start the server with the folder of one")
            return next(iter(self.indexes.values()))
        if name not in self.indexes:
            raise NotServed(f"index: '{name[:60]}' is not served here; {suggest(name[:60], self.indexes)}")
        return self.indexes[name]
