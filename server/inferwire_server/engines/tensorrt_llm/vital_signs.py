"""Signs of life that TensorRT-LLM shows from outside. Each is looked up by name, for none is promised."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_ABSENT = object()


def why_dead(llm: object) -> str:
    """The reason the engine cannot serve any more, as far as it shows; empty while nothing speaks against it."""
    executor = getattr(llm, "_executor", _ABSENT)
    if executor is None:
        return "it has been shut down"
    fatal = getattr(executor, "_fatal_error", None)
    if fatal is not None:
        return f"fatal error {type(fatal).__name__}"
    for owner, name in ((llm, "_check_health"), (executor, "check_health")):
        if _says(getattr(owner, name, None)) is False:
            return "its own health check fails"
    if _says(getattr(executor, "is_shutdown", None)) is True:
        return "it has begun to shut itself down"
    if any(_is_done(future) for future in _futures(executor)):
        return "a worker process has ended"
    return ""


def _says(question: Callable[[], object] | None) -> object:
    if not callable(question):
        return None
    try:
        return question()
    except Exception:  # noqa: BLE001 - a probe that fails says nothing
        return None


def _futures(executor: object) -> Iterable[object]:
    futures = getattr(executor, "mpi_futures", None)
    return futures if isinstance(futures, list | tuple) else ()


def _is_done(future: object) -> bool:
    return _says(getattr(future, "done", None)) is True
