"""What a changed configuration takes: other workers, a word to the router, or a new start."""

from pathlib import Path

import pytest

from slipstream.cluster.config.config_changes import Changes, changes_between, live_dispatch
from slipstream.cluster.config.loading.config_file import load_config

DEMO = Path(__file__).parents[3] / "models" / "slipstream-demo"


@pytest.fixture
def load(tmp_path):
    def loaded(text=""):
        path = tmp_path / "c.yaml"
        path.write_text((text if "model:" in text else f"model: {{path: {DEMO}}}\n{text}") + "\n")
        return load_config(path)

    return loaded


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", Changes()),
        ("engine: {max_num_seqs: 7}", Changes(rolled=("engine.max_num_seqs",))),
        ("decode: {engine: {max_num_seqs: 7}}", Changes(rolled=("decode.engine.max_num_seqs",))),
        ("prefill: {tp: 2}", Changes(rolled=("prefill.tp",))),
        ("decode: {replicas: 3}", Changes(sizes=("decode.replicas",))),
        (f"model: {{path: {DEMO}, version: b}}", Changes(rolled=("model.version",))),
        (f"model: {{path: {DEMO}, name: other}}", Changes(restart=("model.name",))),
        ("router: {dispatch: {slo: {ttft_ms: 100}}}", Changes(live=("router.dispatch.slo.ttft_ms",))),
        ("router: {dispatch: {policy: kv}}", Changes(live=("router.dispatch.policy",))),
        ("router: {dispatch: {queue_timeout_s: 7}}", Changes(restart=("router.dispatch.queue_timeout_s",))),
        ("model_cache: {max_gib: 7}", Changes(live=("model_cache.max_gib",))),
        ("router: {http: {port: 8001}}", Changes(restart=("router.http.port",))),
        ("name: other", Changes(restart=("name",))),
        (
            "engine: {page_tokens: 32}",
            Changes(restart=("engine.page_tokens", "prefill.engine.page_tokens", "decode.engine.page_tokens")),
        ),
    ],
)
def test_a_key_takes_what_it_takes(load, text, changes):
    assert changes_between(load(), load(text)) == changes


def test_the_router_takes_up_what_it_can_and_nothing_else(load):
    old, new = (load(text).router.dispatch for text in ("", "router: {dispatch: {policy: kv, queue_timeout_s: 7}}"))
    live = live_dispatch(old, new)
    assert (live.policy, live.queue_timeout_s) == ("kv", old.queue_timeout_s)
