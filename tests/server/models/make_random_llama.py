"""Run as a program: write a tiny random Llama to a folder and print its greedy continuation of a few ids."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

PROMPT = [5, 17, 99, 42]
NEW_TOKENS = 24


def main(folder: str) -> None:
    """Make the model, save it as a hub repository would hold it, and continue PROMPT."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    _save_tokenizer(folder)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.3,
    )
    model = transformers.LlamaForCausalLM(config).half().float()  # what F16 weights hold
    model.save_pretrained(folder)
    model.generation_config.eos_token_id = None
    ids = model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=NEW_TOKENS)
    print(json.dumps(ids[0, len(PROMPT) :].tolist()))  # noqa: T201 - the caller reads it


def _save_tokenizer(folder: str) -> None:
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokens = ["<s>", "</s>", *sorted(byte_level.alphabet())]
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={t: n for n, t in enumerate(tokens)}, merges=[]))
    core.pre_tokenizer = byte_level(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens(tokens[:2])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")  # noqa: S106
    fast.chat_template = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
    fast.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
