"""The verb `plan`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.command import print_json, verb
from bertree.cli.options import JsonOption


def register(app: typer.Typer) -> None:
    """Add the verb to the application."""
    verb(app)(plan)


def plan(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A preset, a model folder, or a recipe.", show_default=False)
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value ...]", help="Axes to change: layers=96 width=8192 ...; or recipe settings."),
    ] = None,
    devices: Annotated[int, typer.Option(min=1, max=2**20, help="Devices that train together.")] = 8,
    card: Annotated[float, typer.Option(min=0.1, max=1e6, help="Memory of a device in GiB.")] = 80,
    tokens: Annotated[
        float | None, typer.Option(help="Tokens of the whole training (300e9), for its time.", show_default=False)
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a step on all devices; 524288 or the recipe's.", show_default=False),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sequence; up to 1024, or the recipe's.", show_default=False)
    ] = None,
    zero: Annotated[
        int | None, typer.Option(min=0, max=3, help="Show this ZeRO stage alone.", show_default=False)
    ] = None,
    tensor: Annotated[
        int | None, typer.Option(min=1, help="Show this number of ranks that share each layer.", show_default=False)
    ] = None,
    recompute: Annotated[
        bool | None,
        typer.Option("--recompute/--no-recompute", help="Layers again in the backward pass; else where needed."),
    ] = None,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel/--no-sequence-parallel", help="Split norms and dropout by tokens.")
    ] = True,
    peak: Annotated[float, typer.Option(min=0.001, max=1e6, help="TFLOP/s of a device in bf16.")] = 312,
    efficiency: Annotated[float, typer.Option(min=0.01, max=1, help="Share of it that computing reaches.")] = 0.5,
    link: Annotated[float, typer.Option(min=0.001, max=1e6, help="GB/s of a device within its machine.")] = 300,
    network: Annotated[float, typer.Option(min=0.001, max=1e6, help="GB/s of a device to other machines.")] = 25,
    node: Annotated[int, typer.Option(min=1, max=2**20, help="Devices of a machine; limits the tensor size.")] = 8,
    plot: Annotated[Path | None, typer.Option("--plot", help="File for the chart (.svg).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a training on many devices: what fits, what is sent, how long it takes; and the mesh to take.

    Nothing is trained and no device is needed. ZeRO shards what a device keeps over those that read other data: from
    stage 1 on the optimizer, from 2 on the gradients, from 3 on the weights. Tensor parallelism splits each layer among
    devices of one machine. Memory is that of the moment when a device needs most; each mesh is shown with the fastest
    micro-batches that fit.

    [dim]bertree plan megatron-gpt-8.3b --devices 64 --card 80 --tokens 300e9
    bertree plan t-nlg-17b --devices 256 --card 32 --peak 125 --link 150 --network 12.5
    bertree plan bert-large layers=48 --devices 4 --card 24 --zero 3
    bertree plan megatron-bert-3.9b --devices 8 --plot plan.svg[/dim]
    """
    from rich.console import Console

    from bertree.cli.render.plan import print_plan
    from bertree.pretraining.plan import plan as make_plan

    found = make_plan(
        model,
        devices,
        card=card,
        tokens=tokens,
        batch_tokens=batch_tokens,
        length=length,
        zero=zero,
        tensor=tensor,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        peak=peak,
        efficiency=efficiency,
        link=link,
        network=network,
        node=node,
        plot=plot,
        overrides=settings or (),
    )
    if as_json:
        print_json(found.as_dict())
        return
    print_plan(Console(), found)
    if plot is not None:
        print(f"\n{plot}: the chart")
