"""The verbs `serve`, `deploy ray` and `mcp`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.command import SEARCH, SERVE, verb
from bertree.cli.index_options import ModelOption, load_encoder
from bertree.cli.options import AddressOption, DeviceOption, PrecisionOption, SchemaOption, TableOption

NameOption = Annotated[
    list[str] | None, typer.Option("--name", help="Name to serve it by; one for each, in their order.")
]
HostOption = Annotated[str, typer.Option(help="Address to listen on; other than this machine's own it needs a key.")]
KeyOption = Annotated[
    str | None, typer.Option("--api-key", help="Key that clients must send.", show_default="BERTREE_API_KEY")
]
KeyFileOption = Annotated[Path | None, typer.Option("--api-key-file", help="File with keys, one a line.")]
NoAuthOption = Annotated[bool, typer.Option("--no-auth", help="Serve other machines without a key.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verb(app, panel=SERVE)(serve)
    verbs = typer.Typer(no_args_is_help=True)

    @verbs.callback()
    def group() -> None:
        """Keep the name of the only verb in the command."""

    verb(verbs)(ray)
    description = "Serve models and indexes on more than one machine."
    app.add_typer(verbs, name="deploy", help=description, rich_help_panel=SERVE)
    verb(app, panel=SEARCH)(mcp)


def serve(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL_OR_INDEX ...",
            help="Model folders, presets, or: default, the bundled model; indexes: folders, postgresql:// addresses; "
            "folders of runs and studies.",
            show_default=False,
        ),
    ],
    name: NameOption = None,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 8080,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes, each with its own copy of the models.")] = 1,
    threads: Annotated[
        int, typer.Option(min=0, max=1024, help="Compute threads of a process; 0: one for each core.")
    ] = 0,
    api_key: KeyOption = None,
    api_key_file: KeyFileOption = None,
    no_auth: NoAuthOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "float32",
    cors: Annotated[
        list[str] | None, typer.Option("--cors", metavar="ORIGIN", help="Let pages of this site ask; may be repeated.")
    ] = None,
    max_body: Annotated[int, typer.Option("--max-body", min=1, max=1024, help="Megabytes of a request.")] = 8,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=600, help="Seconds for a request that does not say it (X-Timeout).")
    ] = 60,
    queue: Annotated[
        float, typer.Option(min=0.1, max=600, help="Seconds that a request may wait; more is refused (429).")
    ] = 10,
    drain: Annotated[float, typer.Option(min=1, max=3600, help="Seconds to finish requests after SIGTERM.")] = 30,
    watch: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds between looks for changed models; 0: only at SIGHUP.")
    ] = 5,
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    log: Annotated[str, typer.Option(help="requests: a line for each; errors: only what went wrong.")] = "requests",
) -> None:
    """Serve models and indexes over HTTP: OpenAI's, Cohere's and TEI's routes, and a playground in the browser.

    It listens on this machine alone, unless --host is given together with a key. /docs lists the routes.

    [dim]bertree serve default
    bertree serve my-model my-index --port 9000
    bertree serve runs default
    bertree serve postgresql://user@host/database
    BERTREE_API_KEY=secret bertree serve my-model --host 0.0.0.0
    curl localhost:8080/v1/embeddings -d '{"input": "Hello"}'[/dim]
    """
    from bertree.serve.launch import serve as run_server
    from bertree.serve.settings import ServerSettings, read_keys

    settings = ServerSettings(
        sources=tuple(sources),
        names=tuple(name or ()),
        host=host,
        port=port,
        workers=workers,
        threads=threads,
        device=device,
        precision=precision,
        keys=read_keys(api_key, api_key_file),
        no_auth=no_auth,
        cors=tuple(cors or ()),
        max_body=max_body,
        timeout=timeout,
        queue=queue,
        drain=drain,
        watch=watch,
        log=log,
        schema=schema,
        table=table,
    )
    if code := run_server(settings):
        raise typer.Exit(code)


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
    name: NameOption = None,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    api_key: KeyOption = None,
    api_key_file: KeyFileOption = None,
    no_auth: NoAuthOption = False,
    address: AddressOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "float32",
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
) -> None:
    """Serve models and indexes with Ray Serve, until a signal comes: the routes of `bertree serve` on a Ray cluster.

    Needs the extra 'serve' and pip install 'ray\\[serve]' on every machine.

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


def mcp(
    indexes: Annotated[
        list[str],
        typer.Argument(metavar="INDEX ...", help="Folders of indexes, or a postgresql:// address.", show_default=False),
    ],
    model: ModelOption = None,
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
) -> None:
    """Offer search in indexes to an assistant: a server of the Model Context Protocol on standard input and output.

    Tools: search (a question -> passages) and read (a document, or the text around a passage). An assistant starts it
    itself, from its settings: the command is bertree, the arguments are mcp and the folder of the index.

    [dim]bertree mcp my-index
    bertree mcp my-index other-index
    bertree mcp postgresql://user@host/database[/dim]
    """
    from bertree.search.mcp.tools import serve_indexes

    serve_indexes(indexes, lambda path: load_encoder(path, device, precision), model, schema=schema, table=table)
