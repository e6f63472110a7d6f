"""`inferwire pull` and `inferwire models`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from inferwire_server.models.errors import ModelError
from inferwire_server.models.progress import Progress as PullProgress
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.sources import pull as pull_model
from inferwire_server.settings import SettingsError, load_settings

_models_dir = click.option("--models-dir", type=click.Path(path_type=Path), help="Folder of pulled models.")


def _repository(models_dir: Path | None) -> ModelRepository:
    try:
        return ModelRepository(load_settings({"models_dir": models_dir}).models_dir)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


class _Bars:
    """One progress bar for each step of a pull."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, progress: PullProgress) -> None:
        step = f"{progress.stage} {progress.subject}"
        task = self._tasks.get(step)
        if task is None:
            task = self._tasks[step] = self._bars.add_task(step, total=progress.total)
        self._bars.update(task, completed=progress.done, total=progress.total)


@click.command()
@click.argument("source")
@_models_dir
def pull(source: str, models_dir: Path | None) -> None:
    """Fetch SOURCE into the model folder: a known name, ./a-file.gguf, ./a-folder, or hf:org/name."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console) as bars:
            versions = pull_model(source, _repository(models_dir), _Bars(bars))
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    for version in versions:
        click.echo(f"{version.manifest.name}@{version.manifest.version}")


@click.group(invoke_without_command=True)
@_models_dir
@click.pass_context
def models(context: click.Context, models_dir: Path | None) -> None:
    """List the models in the model folder; `verify` and `remove` act on one."""
    context.obj = _repository(models_dir)
    if context.invoked_subcommand is not None:
        return
    try:
        versions = context.obj.versions()
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    if not versions:
        click.echo("No models yet. Get one:  inferwire pull smollm2-135m-instruct", err=True)
        return
    table = Table(Column("model", no_wrap=True), "size", "format", "licence", "source")
    for version in versions:
        manifest = version.manifest
        size = sum(file.size for file in manifest.files) / 1e6
        table.add_row(
            f"{manifest.name}@{manifest.version}",
            f"{size:,.0f} MB",
            manifest.format.value,
            manifest.licence,
            str(manifest.source),
        )
    Console().print(table)


@models.command()
@click.argument("model")
@click.pass_obj
def verify(repository: ModelRepository, model: str) -> None:
    """Prove the files of MODEL against its manifest."""
    try:
        version = repository.verify(model)
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{version.manifest.name}@{version.manifest.version} is whole")


@models.command()
@click.argument("model")
@click.pass_obj
def remove(repository: ModelRepository, model: str) -> None:
    """Delete MODEL (all versions, or name@version)."""
    try:
        removed = repository.remove(model)
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    for name in removed:
        click.echo(f"removed {name}")
