"""Which module has which model family. `directory.native_family` knows the architectures, and refuses all others."""

from __future__ import annotations

from slipstream.workers.models.directory.native_family import Family
from slipstream.workers.models.gemma import Gemma
from slipstream.workers.models.gpt_oss import GptOss
from slipstream.workers.models.interface.decoder import DecoderFamily
from slipstream.workers.models.llama import Llama
from slipstream.workers.models.qwen3_moe import Qwen3Moe

FAMILIES: dict[Family, DecoderFamily] = {
    "llama": Llama.read,
    "mistral": Llama.read,
    "qwen2": Llama.read,
    "qwen3": Llama.read,
    "gemma": Gemma.read,
    "gemma2": Gemma.read,
    "gemma3": Gemma.read,
    "qwen3_moe": Qwen3Moe,
    "gpt_oss": GptOss,
}
