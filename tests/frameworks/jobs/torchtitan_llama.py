"""torchtitan: its own trainer and its small Llama, two FSDP2 ranks by two pipeline stages, on words made here.

Arguments: torchtitan's own.
"""

import json
import os
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from torchtitan.train import Trainer, main


def prepare() -> None:
    """Write a tokenizer of a few words, and a text of them, where torchtitan looks for those of its own tests."""
    tokenizers, texts = Path("tests/assets/tokenizer"), Path("tests/assets/c4_test")
    words = [f"word{index}" for index in range(100)]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(["<s>", "</s>", *words])}, "<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizers.mkdir(parents=True)
    texts.mkdir(parents=True)
    tokenizer.save(str(tokenizers / "tokenizer.json"))
    (tokenizers / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (texts / "data.json").write_text(8 * (json.dumps({"text": " ".join(words)}) + "\n"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        main(Trainer)
