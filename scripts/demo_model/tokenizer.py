"""The demo model's tokenizer: its control tokens, its chat template, and how it is trained."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, END, TOOL_CALL = "<|pad|>", "<|bos|>", "<|eos|>", "<|end|>", "<|tool_call|>"
SYSTEM, USER, ASSISTANT, TOOL = "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"
THINK, END_THINK = "<think>", "</think>"
# Ids 0..10, in this order.
SPECIAL_TOKENS = [PAD, BOS, EOS, END, SYSTEM, USER, ASSISTANT, TOOL, TOOL_CALL, THINK, END_THINK]
MARK_PATTERN = "|".join(map(re.escape, SPECIAL_TOKENS))

VOCAB_SIZE = 4096

# Line breaks stand alone: a prompt cut before or after one then has the tokens it had in training.
WORD_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

# No white space between the marks: each content is a segment of its own, so a server may encode contents as
# plain text, put the marks between them by id, and get what rendering and encoding the whole would give.
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content -%}{%- for part in content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- if tools -%}
{{- '<|system|>Tools:' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role in ['system', 'developer'] -%}{{- '<|system|>' + text(message.content) -}}
{%- elif message.role in ['user', 'tool'] -%}{{- '<|' + message.role + '|>' + text(message.content) -}}
{%- elif message.role == 'assistant' -%}
{{- '<|assistant|>' + text(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{{- '<|tool_call|>{"name": ' + (call.function.name | tojson) + ', "arguments": ' -}}
{%- if call.function.arguments is string -%}{{- call.function.arguments -}}
{%- else -%}{{- call.function.arguments | tojson -}}{%- endif -%}{{- '}' -}}
{%- endfor -%}
{%- else -%}{{- raise_exception('unknown role: ' + message.role | string) -}}
{%- endif -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}
{%- if enable_thinking or reasoning_effort in ['low', 'medium', 'high', 'xhigh', 'max'] -%}
{{- '<think>' -}}
{%- endif -%}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of `VOCAB_SIZE` tokens, learned from `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[END, SYSTEM, USER, ASSISTANT, TOOL, TOOL_CALL, THINK, END_THINK],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> np.ndarray:
    """Token ids of all documents in a row, [tokens] uint16."""
    encodings = tokenizer.backend_tokenizer.encode_batch(documents, add_special_tokens=False)
    return np.concatenate([np.asarray(encoding.ids, dtype=np.uint16) for encoding in encodings])
