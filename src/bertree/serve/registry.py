"""Models, indexes and folders of runs by name. A swap replaces an entry; requests with the old one finish with it."""

from pathlib import Path

from bertree.errors import UserError, listed, suggest
from bertree.serve.served import ABILITIES, ServedIndex, ServedModel


class NotServed(Exception):
    """There is no model or index of that name."""


class Registry:
    """Models and indexes by name, in the order of the command line."""

    def __init__(self) -> None:
        self.models: dict[str, ServedModel] = {}
        self.indexes: dict[str, ServedIndex] = {}
        self.runs: dict[str, Path] = {}  # folders that hold runs and studies

    def put_model(self, served: ServedModel) -> None:
        """Add a model, or replace the one of its name."""
        self.models = {**self.models, served.name: served}

    def drop_model(self, name: str) -> None:
        """Remove a model."""
        self.models = {key: served for key, served in self.models.items() if key != name}

    def put_index(self, served: ServedIndex) -> None:
        """Add an index, or replace the one of its name."""
        self.indexes = {**self.indexes, served.name: served}

    def model(self, name: str | None = None, ability: str | None = None) -> ServedModel:
        """Return a model by name; without one, the first with an ability.

        NotServed if there is none of that name; UserError if it lacks the ability."""
        able = [served for served in self.models.values() if ability is None or ability in served.abilities]
        if name is None:
            if able:
                return able[0]
            what = f" that can {ABILITIES[ability]}" if ability else ""
            raise UserError(f"model: no model{what} is served here; served: {listed(self.models) or 'none'}")
        if name not in self.models:
            raise NotServed(f"model: '{name[:60]}' is not served here; {suggest(name[:60], self.models)}")
        served = self.models[name]
        if ability is None or ability in served.abilities:
            return served
        alternatives = f"these can: {listed(model.name for model in able)}" if able else "no served model can"
        raise UserError(f"model: '{name}' cannot {ABILITIES[ability]}; {alternatives}")

    def index(self, name: str | None = None) -> ServedIndex:
        """Return an index by name; without one, the first."""
        if name is None:
            if not self.indexes:
                raise UserError("index: no index is served here; start the server with the folder of one")
            return next(iter(self.indexes.values()))
        if name not in self.indexes:
            raise NotServed(f"index: '{name[:60]}' is not served here; {suggest(name[:60], self.indexes)}")
        return self.indexes[name]
