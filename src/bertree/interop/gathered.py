"""Write the folder of a model that is spread over ranks."""

from dataclasses import replace
from pathlib import Path

from bertree.interop import folder as model_folder
from bertree.interop.contents import Contents, build_empty, head_classes
from bertree.scale.local_shards import whole_tensors
from bertree.scale.world import World


def write_together(contents: Contents, folder: Path, world: World) -> None:
    """Write a folder as one device would: rank 0 collects the weights of all, tensor by tensor, in its host memory."""
    if not world.joined:
        model_folder.write(contents, folder)
        return
    state = {}
    for name, tensor in whole_tensors(contents.network, world):
        if world.is_first:
            state[name] = tensor.cpu()

    def write() -> None:
        if world.is_first:
            vector = contents.network.vector.config if contents.network.vector is not None else None
            heads, readout = head_classes(contents.network), contents.network.readout
            network = build_empty(contents.architecture, heads, folder, readout, vector)
            network.load_state_dict(state, assign=True)
            model_folder.write(replace(contents, network=network), folder)

    world.check_together(write)
