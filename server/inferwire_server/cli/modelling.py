"""`inferwire pull` and `inferwire models`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from inferwire_server.models.progress import Progress as PullProgress
    from inferwire_server.models.repository import ModelRepository

_models_dir = click.option("--models-dir", type=click.Path(path_type=Path), help="Folder of pulled models.")


def _repository(models_dir: Path | None) -> ModelRepository:
    from inferwire_server.models.repository import ModelRepository
    from inferwire_server.settings import SettingsError, load_settings

    try:
        return ModelRepository(load_settings({"models_dir": models_dir}).models_dir)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


@contextmanager
def _model_errors() -> Iterator[None]:
    """Say what the model store has to say, and exit."""
    from inferwire_server.models.errors import ModelError

    try:
        yield
    except ModelError as error:
        raise click.ClickException(str(error)) from None


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
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from inferwire_server.models.sources import pull as pull_model

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with _model_errors(), Progress(*columns, console=Console(stderr=True)) as bars:
        versions = pull_model(source, _repository(models_dir), _Bars(bars))
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
    with _model_errors():
        versions = context.obj.versions()
    if not versions:
        click.echo("No models yet. Get one:  inferwire pull smollm2-135m-instruct", err=True)
        return
    from rich.console import Console
    from rich.table import Column, Table

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
    """Prove the files of MODEL (all versions, or name@version) against their manifests."""
    with _model_errors():
        versions = repository.verify(model)
    for version in versions:
        click.echo(f"{version.manifest.qualified_name} is whole")


@models.command()
@click.argument("model")
@click.pass_obj
def remove(repository: ModelRepository, model: str) -> None:
    """Delete MODEL (all versions, or name@version)."""
    with _model_errors():
        removed = repository.remove(model)
    for name in removed:
        click.echo(f"removed {name}")
