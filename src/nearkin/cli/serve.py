"""The command that serves an index over HTTP."""

from __future__ import annotations

import secrets
import webbrowser
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from nearkin.cli._app import SEARCH, Device, app, escape
from nearkin.errors import require

__all__ = ["serve"]


@app.command(rich_help_panel=SEARCH)
def serve(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="An index that 'nearkin index' made.")],
    port: Annotated[int, typer.Option("--port", help="Where to listen; 0 for any port that is free.")] = 8000,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at; 0.0.0.0 for all. Any but loopback needs a key.")
    ] = "127.0.0.1",
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            envvar="NEARKIN_API_KEY",
            help="What requests must carry. Better in the environment: others see a command line. Where one is needed "
            "and none is given it is made up and shown once.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A further name that the server is called by."),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Search only: nothing is added, removed or corrected.")
    ] = False,
    hide_paths: Annotated[bool, typer.Option("--hide-paths", help="Do not show where the images lie.")] = False,
    max_megabytes: Annotated[float, typer.Option("--max-megabytes", help="Of a request.")] = 32.0,
    max_megapixels: Annotated[float, typer.Option("--max-megapixels", help="Of an uploaded image.")] = 64.0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    run: Annotated[
        Path | None, typer.Option("--run", help="The run or exported file that made the index, if it has moved since.")
    ] = None,
    device: Device = None,
    log_level: Annotated[
        Literal["debug", "info", "warning"], typer.Option("--log-level", help="Logs are JSON on the error stream.")
    ] = "info",
) -> None:
    """Search an index in the browser and over HTTP.

    [bold]nearkin serve birds.index --open[/bold]  for yourself: only this machine can reach it

    [bold]nearkin serve birds.index --host 0.0.0.0 --read-only[/bold]  for others, who need the key that it shows

    Ctrl-C finishes what was asked and ends. docs/serving.md has the interface, the limits and what is checked.
    """
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(module, "serve")
    from nearkin.index import Index
    from nearkin.runs.model import load_again
    from nearkin.serving.app import serve as run_server
    from nearkin.serving.middleware import log_to_stderr
    from nearkin.serving.settings import Settings, is_loopback

    made_up = None if key is not None or is_loopback(host) else secrets.token_urlsafe(24)
    settings = Settings(
        host=host,
        port=port,
        key=key or made_up,
        allow_hosts=tuple(allow_host or ()),
        read_only=read_only,
        hide_paths=hide_paths,
        max_bytes=int(max_megabytes * (1 << 20)),
        max_pixels=int(max_megapixels * 1e6),
    )
    index = Index.open(folder)
    if run is not None or device is not None:
        told = index.status()
        model = load_again(run or told.model, told.model_options, device=device)
        index = Index.open(folder, model)
    console = Console(highlight=False, soft_wrap=True)

    def ready(url: str) -> None:
        address = f"{url}/#key={made_up}" if made_up else url
        console.print(f"{escape(str(folder))} with {len(index):,} images is at {escape(address)}  (Ctrl-C ends it)")
        if made_up:
            console.print(f"Its key, shown this once: {escape(made_up)}")
        if open_browser:
            webbrowser.open(address)

    log_to_stderr(log_level)
    run_server(index, settings, ready=ready)
