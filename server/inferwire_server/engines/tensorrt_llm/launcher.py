"""Which process of a multi-process launch may serve: the first, and only as the launcher starts it."""

from __future__ import annotations

from collections.abc import Mapping

from inferwire_server.domain.errors import EngineDown

_LAUNCHED = "TLLM_SPAWN_PROXY_PROCESS"
_RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_ID")


def require_leader(environment: Mapping[str, str]) -> None:
    """Raise EngineDown in a process that an MPI launcher started as anything but the leader.

    `trtllm-llmapi-launch` runs its command on rank 0 alone and with the launcher's rank variables removed. A rank
    variable that is still set means that the server itself was started once per GPU.
    """
    if environment.get(_LAUNCHED) == "1":
        return
    for name in _RANKS:
        rank = environment.get(name, "")
        if rank.isdecimal() and int(rank) > 0:
            raise EngineDown(
                f"engine unavailable: this process is rank {rank} ({name}), and only rank 0 may serve. "
                "Start one command per GPU as `trtllm-llmapi-launch inferwire serve …`; "
                "it runs the server on rank 0 and workers on the others."
            )
