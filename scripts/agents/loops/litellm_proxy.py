"""LiteLLM's proxy in front of Slipstream, asked by OpenAI's client and in Anthropic's form."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scripts.agents.loops import openai_python, openai_responses
from scripts.agents.loops.report import ONE, TWO, Loop, run, saw, weather

START_TIMEOUT_S = 100.0
WITHOUT_KEY = "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"  # of the proxy itself, which only this program asks
TOOL: Any = {"name": "get_weather", "input_schema": openai_responses.PARAMETERS}


@contextmanager
def proxy(api: str) -> Iterator[str]:
    """Its base URL. `scripted` and `thinking` go to chat completions and responses, `claude` to messages."""
    own: dict[str, str] = {"api_base": api, "api_key": "-"}
    routes = {name: {**own, "model": f"openai/{name}"} for name in ("scripted", "thinking")}
    routes["claude"] = {**own, "model": "anthropic/scripted", "api_base": api.removesuffix("/v1")}
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        config = Path(folder) / "config.yaml"
        models = [{"model_name": name, "litellm_params": route} for name, route in routes.items()]
        config.write_text(json.dumps({"model_list": models}))
        program = Path(sys.executable).with_name("litellm")
        command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", WITHOUT_KEY: "true"},
            stdout=sys.stderr,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_alive(url, process)
            yield f"{url}/v1"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_alive(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health/liveliness", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    raise RuntimeError("the proxy did not start")


def messages(api: str, model: str, question: str, city: str) -> str:
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": question}]
    while True:
        body = {"model": model, "max_tokens": 500, "tools": [TOOL], "messages": history}
        head = {"Content-Type": "application/json", "anthropic-version": "2023-06-01", "x-api-key": "-"}
        request = urllib.request.Request(f"{api}/messages", json.dumps(body).encode(), head)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = json.loads(answer.read())["content"]
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return saw(asked=asked, answer="".join(block.get("text", "") for block in content), city=city)
        asked += [call["input"]["city"] for call in calls]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": weather(call["input"]["city"])}
            for call in calls
        ]
        history += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]


LOOPS: dict[str, Loop] = {
    "chat, two tools": lambda api: openai_python.whole(api, TWO, "scripted", "Rome"),
    "chat, two tools, streamed": lambda api: openai_python.streamed(api, TWO, "scripted", "Rome"),
    "responses, two tools": lambda api: openai_responses.whole(api, TWO, "scripted", "Rome"),
    "responses, stream helper": openai_responses.accumulated,
    "messages, two tools, of messages": lambda api: messages(api, "claude", TWO, "Rome"),
    "messages, one tool, of chat completions": lambda api: messages(api, "scripted", ONE, "Paris"),
}


def through(loop: Loop, proxied: str) -> Callable[[str], str]:
    return lambda _: loop(proxied)


if __name__ == "__main__":
    with proxy(sys.argv[1]) as proxied:
        run({name: through(loop, proxied) for name, loop in LOOPS.items()})
