"""Adapters of weights; recorded, never used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class LoRARequest:
    """The default path does not exist, and that is an error."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_ckpt_source: str = "hf"

    def __post_init__(self) -> None:
        if not self.lora_path or not Path(self.lora_path).exists():
            raise ValueError(f"lora_path {self.lora_path!r} does not exist")
