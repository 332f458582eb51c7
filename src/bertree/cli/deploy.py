"""The verb `deploy ray`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.command import verb
from bertree.cli.options import AddressOption, DeviceOption, PrecisionOption
from bertree.cli.search.options import DatabaseTableOption, SchemaOption


def register(app: typer.Typer) -> None:
    """Add the verb to the application."""
    verbs = typer.Typer(no_args_is_help=True, help="Serve models and indexes on more than one machine.")

    @verbs.callback()
    def group() -> None:
        """Keep the name of the only verb in the command."""

    verb(verbs)(ray)
    app.add_typer(verbs, name="deploy", help="Serve models and indexes on more than one machine.")


def ray(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL_OR_INDEX ...",
            help="What to serve, as for bertree serve; paths must be the same on all machines.",
            show_default=False,
        ),
    ],
    replicas: Annotated[int, typer.Option(min=1, max=10_000, help="Copies of the server in the cluster.")] = 1,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Compute threads, and CPUs, of each.")] = 1,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Name to serve it by; one for each, in their order.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; other than this machine's own it needs a key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="Key that clients must send.", show_default="BERTREE_API_KEY")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option("--api-key-file", help="File with keys, one a line.")] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Serve other machines without a key.")] = False,
    address: AddressOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "float32",
    schema: SchemaOption = "public",
    table: DatabaseTableOption = "bertree",
) -> None:
    """Serve models and indexes with Ray Serve, until a signal comes: the routes of `bertree serve` on a Ray cluster.

    Needs pip install 'bertree\\[serve]' 'ray\\[serve]' on every machine.

    [dim]bertree deploy ray my-model --replicas 8 --address auto
    BERTREE_API_KEY=secret bertree deploy ray my-model my-index --replicas 4 --threads 4 --host 0.0.0.0[/dim]
    """
    from bertree.console import say
    from bertree.serve.ray_serve import serve_on_ray
    from bertree.serve.settings import ServerSettings, read_keys

    settings = ServerSettings(
        sources=tuple(sources),
        names=tuple(name or ()),
        host=host,
        port=port,
        threads=threads,
        device=device,
        precision=precision,
        keys=read_keys(api_key, api_key_file),
        no_auth=no_auth,
        schema=schema,
        table=table,
    )
    copies = "1 replica serves" if replicas == 1 else f"{replicas:,} replicas serve"
    serve_on_ray(settings, replicas, address, lambda: say(f"bertree: {copies} at http://{host}:{port}/"))
