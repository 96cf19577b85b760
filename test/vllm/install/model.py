"""Writes a Llama of half a million random weights and its tokenizer into a folder: small, and served as any other."""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

OUT = sys.argv[1]
WORDS = [
    "the quick brown fox jumps over the lazy dog",
    "hello world this is a tiny model used for tests of a supervisor",
    "user assistant system say something",
]

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
special = ["<s>", "</s>", "<pad>"]
tokenizer.train_from_iterator(
    WORDS * 50, trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet)
)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
)
fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
fast.save_pretrained(OUT)

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=64,
    # Long enough for a stream that outlasts whatever is done to the engine meanwhile.
    max_position_embeddings=32768,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=2,
    tie_word_embeddings=False,
    dtype="bfloat16",
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(OUT)
