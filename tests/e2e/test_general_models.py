"""Models that no native family computes, through HTTP: their answers are those of transformers."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import SMALL, MakeCluster
from tests.support.e2e.reference import Reference
from tests.support.e2e.streams import client_of, complete
from tests.support.workers.custom_code import build_custom_code_model, processes_that_ran
from tests.support.workers.general_models import build_general_model
from tests.support.workers.tiny_models import VOCAB_SIZE, build_tiny_model, byte_tokenizer

NUM_TOKENS = 40
BIAS = {str(token_id): -100 for token_id in range(256, VOCAB_SIZE)}  # against special tokens
PROMPTS = ("a short one", "a long one, which is computed by the prefill worker, and whose pages travel; " * 4)


def test_a_mixture_of_experts_and_a_model_with_code_of_its_own(make_cluster: MakeCluster, tmp_path: Path) -> None:
    mixtral = build_general_model("mixtral", tmp_path / "mixtral", vocab_size=VOCAB_SIZE, num_local_experts=4)
    byte_tokenizer().save_pretrained(mixtral)
    twisted = build_custom_code_model(tmp_path / "twisted")
    pool = {"replicas": 1}
    cluster = make_cluster(
        {
            **SMALL,
            "models": [
                {"name": "mixtral", "path": str(mixtral), "prefill": pool, "decode": pool},
                {"name": "twisted", "path": str(twisted), "trust_remote_code": True},
            ],
        }
    )
    cluster.start()
    references = {"mixtral": Reference(mixtral), "twisted": Reference(build_tiny_model("llama", tmp_path / "llama"))}
    with client_of(cluster) as client:
        for name, reference in references.items():
            for prompt in PROMPTS:
                expected = reference.text(reference.encode(prompt), NUM_TOKENS)
                assert complete(client, prompt, NUM_TOKENS, model=name, logit_bias=BIAS) == expected
    state = cluster.state
    assert state is not None
    (member,) = (one for one in state.members if one.model == "twisted")
    assert processes_that_ran(twisted) == set(member.pids)
