"""Byte-level BPE trained on the Python standard library's own sources."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from leyline_agent.server.models.shapes import CONTEXT, VOCAB_SIZE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def sources() -> list[Path]:
    """The top-level modules of the standard library, sorted."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def _texts() -> Iterator[str]:
    for path in sources():
        yield path.read_text(encoding="utf-8", errors="replace")


def train() -> "PreTrainedTokenizerFast":
    """A tokenizer of `VOCAB_SIZE` entries; special tokens have the lowest ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
    )
