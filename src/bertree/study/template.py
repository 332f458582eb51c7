"""A study file of one's own to begin with: the fields that most studies need, with comments."""

from pathlib import Path

from bertree.errors import UserError
from bertree.files.atomic import write_into_folder
from bertree.study.definition import BUNDLED, Study
from bertree.study.load import load_study

TEMPLATE = BUNDLED.parent / "template.toml"


def write_template(path: Path, study: str = "") -> Study:
    """Write the template, or a built-in study, to a new file; return the study in it."""
    if path.suffix != ".toml":
        raise UserError(f"{path}: must end in .toml")
    if path.exists():
        raise UserError(f"{path}: exists already; give another path")
    if study:
        load_study(study)
    source = Path(study) if study.endswith(".toml") else BUNDLED / f"{study}.toml" if study else TEMPLATE
    write_into_folder(path, source.read_bytes())
    return load_study(path)
