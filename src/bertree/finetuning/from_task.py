"""Start from a model that has learned another task: its encoder, with a new head (`--from-task`).

Small tasks gain from a related large one: RTE, MRPC and STS-B are fine-tuned from an MNLI model in most published
results (Phang et al. 2018; Liu et al. 2019; Lan et al. 2019).
"""

from pathlib import Path

from bertree.errors import UserError
from bertree.inference.load import load
from bertree.inference.model import Model
from bertree.run_folder import MODEL
from bertree.text.identity import tokenizer_hash


def load_from_task(run: str | Path, base: Model, name: str, task: str) -> tuple[Model, Path]:
    """Load the model of a fine-tuning run, or a folder with one, that was made from `base`; return it and its folder.

    It must have the layers and the tokenizer of `base`, called `name`, and have learned another task than `task`.
    """
    folder = Path(run) / MODEL if (Path(run) / MODEL).is_dir() else Path(run)
    if not folder.is_dir():
        raise UserError(f"{run}: no such run or model folder (`from_task`)")
    found = load(folder, device=str(base.device))
    learned = str(found.task.get("name", ""))
    if not learned:
        raise UserError(f"{folder}: was not fine-tuned, so there is no task to start from (`from_task`)")
    if learned == task:
        raise UserError(f"{folder}: has learned {task} already; give it in place of {name}, without `from_task`")
    shapes = [
        {key: tensor.shape for key, tensor in model.network.encoder.state_dict().items() if key.startswith("stack.")}
        for model in (found, base)
    ]
    if shapes[0] != shapes[1]:
        raise UserError(f"{folder}: its layers are not those of {name}, so it was made from another model")
    if tokenizer_hash(found.required_tokenizer) != tokenizer_hash(base.required_tokenizer):
        raise UserError(f"{folder}: its tokenizer is not that of {name}, so it was made from another model")
    return found, folder
