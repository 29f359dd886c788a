"""The command that serves an index over HTTP."""

from __future__ import annotations

import secrets
import webbrowser
from typing import Annotated, Literal

import typer

from nearkin.cli._app import SEARCH, app, say
from nearkin.cli.options import Device, IndexFolder, MovedRun, open_index
from nearkin.errors import require


@app.command(rich_help_panel=SEARCH)
def serve(
    folder: IndexFolder,
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 for any free port.")] = 8000,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all. All but loopback need a key.")
    ] = "127.0.0.1",
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            envvar="NEARKIN_API_KEY",
            help="API key that requests must carry: at least 12 characters of plain ASCII. Prefer the environment: "
            "other users see a command line. "
            "Where a key is needed and none is given, one is generated and shown once.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Another host name of the server."),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Search only: nothing is added, removed or corrected.")
    ] = False,
    hide_paths: Annotated[bool, typer.Option("--hide-paths", help="Do not show the paths of the images.")] = False,
    max_megabytes: Annotated[float, typer.Option("--max-megabytes", help="Largest request.")] = 32.0,
    max_megapixels: Annotated[float, typer.Option("--max-megapixels", help="Largest uploaded image.")] = 64.0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    run: MovedRun = None,
    device: Device = None,
    log_level: Annotated[
        Literal["debug", "info", "warning"], typer.Option("--log-level", help="Logs are JSON on the error stream.")
    ] = "info",
) -> None:
    """Search an index in the browser and over HTTP.

    [bold]nearkin serve birds.index --open[/bold]  for yourself: only this machine can reach it

    [bold]nearkin serve birds.index --host 0.0.0.0 --read-only[/bold]  for others, who need the key that it shows

    Ctrl-C finishes open requests and ends. docs/serving.md describes the interface and the limits.
    """
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(module, "serve")
    from nearkin.serving.app import serve as run_server
    from nearkin.serving.middleware import log_to_stderr
    from nearkin.serving.settings import Settings, is_loopback

    generated = None if key is not None or is_loopback(host) else secrets.token_urlsafe(24)
    settings = Settings(
        host=host,
        port=port,
        key=key or generated,
        allow_hosts=tuple(allow_host or ()),
        read_only=read_only,
        hide_paths=hide_paths,
        max_bytes=int(max_megabytes * (1 << 20)),
        max_pixels=int(max_megapixels * 1e6),
    )
    index = open_index(folder, run, device)

    def ready(url: str) -> None:
        address = f"{url}/#key={generated}" if generated else url
        say(f"{folder} with {len(index):,} images is at {address}  (Ctrl-C ends it)")
        if generated:
            say(f"Its key, shown only once: {generated}")
        if open_browser:
            webbrowser.open(address)

    log_to_stderr(log_level)
    run_server(index, settings, ready=ready)
