"""Worker programs that are killed, cut off, drained or badly set up: nothing leaks, and no request is left waiting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.cache.version_plan import plan_version
from slipstream.router.model_files.file_digest import DigestCache
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.model_files.sources.directory_source import DirectorySource
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from slipstream.router.protocol.messages import Credits, Drain, EngineRequest, Failed, HandedOff, Stats
from tests.support.workers.scripted_router import Connection, ScriptedRouter, held_port, request
from tests.support.workers.worker_process import END_TIMEOUT_S, WorkerProcess

pytestmark = pytest.mark.timeout(240)  # with the start of the workers, on a busy machine

MODEL = "llama"


@dataclass
class Workers:
    """`decode` outlives all tests; the others are there to be lost, each in one test."""

    router: ScriptedRouter
    folder: Path
    model_dir: Path
    decode: Connection
    processes: dict[str, WorkerProcess]

    def connection(self, name: str) -> Connection:
        return self.router.connection(name)


@pytest.fixture(scope="module")
def workers(tiny_model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("failures")
    model_dir = tiny_model_dir(MODEL)
    with ScriptedRouter() as router, ExitStack() as stack:

        def start(name: str, role: str, **settings: object) -> WorkerProcess:
            return stack.enter_context(WorkerProcess(folder, name, role, model_dir, router.port, **settings))  # type: ignore[arg-type]

        processes = {
            "d": start("d", "decode"),
            "slow": start("slow", "prefill", engine={"max_step_tokens": 4}),  # a prompt takes many steps
            "corrupt": start("corrupt", "prefill", transfer={"corrupt_every": 7}),
            "drained": start("drained", "decode"),
            "headless": start("headless", "prefill", tp=2),
            "crippled": start("crippled", "prefill", tp=2),
            "frozen": start("frozen", "prefill", tp=2, stall_s=2.0),
        }
        yield Workers(router, folder, model_dir, router.connection("d"), processes)


def prompt(num_tokens: int) -> list[int]:
    return [7 * n % 256 for n in range(num_tokens)]


def wait_gone(pid: int) -> None:
    """Until no process has this id. A zombie that its parent has not waited for yet is gone enough."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still there after {END_TIMEOUT_S:g} s")


def wait_until_stopped(pid: int) -> None:
    """A signal is delivered to a process that runs a little later."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.001)


def handed_off(decode: Connection, what: EngineRequest) -> list[HandedOff]:
    return [m for m in decode.all(HandedOff) if m.request_id == what.request_id]


def test_pages_of_a_prefill_worker_that_is_killed_in_mid_transfer_come_back(workers: Workers) -> None:
    decode, slow, victim = workers.decode, workers.connection("slow"), workers.processes["slow"]
    max_tokens = slow.hello.max_queued_tokens
    for number in range(10):  # on a busy machine a prompt may be over before we hear that half of it is computed
        decode.wait_all_free()
        mark, heard = decode.num_messages, slow.num_messages
        what = request(f"victim-{number}", prompt(480), max_tokens=10, salt=str(number))
        slow.prefill(what, decode.reserve(what, slow))
        # Credits follow its steps: when they say that half is computed, half of the pages are on their way.
        slow.wait(Credits, lambda c: max_tokens - 300 < c.free_tokens < max_tokens, after=heard)
        victim.process.send_signal(signal.SIGSTOP)
        wait_until_stopped(victim.process.pid)
        workers.router.read_what_has_come()
        if not slow.chunks(what.request_id) and not handed_off(decode, what):
            break
        victim.process.send_signal(signal.SIGCONT)
        decode.cancel(what)
    victim.kill()
    failed = decode.wait_failed(what.request_id)
    assert failed.retryable
    decode.wait_at_rest(mark)
    decode.wait_all_free()
    assert not handed_off(decode, what)
    slow.wait_lost()
    assert not slow.chunks(what.request_id), "the prefill was over before the kill: this test shows nothing"


def test_a_byte_flipped_in_flight_is_noticed_and_the_next_attempt_succeeds(workers: Workers) -> None:
    """One message in seven is broken. A prompt of one slab is three messages, one a layer."""
    decode, corrupt = workers.decode, workers.connection("corrupt")
    for number in range(3):
        what = request(f"flip-{number}", prompt(40), salt=f"flip-{number}")
        corrupt.prefill(what, decode.reserve(what, corrupt))
        ended = decode.wait_end_of_transfer(what)
        if isinstance(ended, Failed):
            break
        decode.cancel(what)
    else:
        raise AssertionError("nine messages came whole")
    failed = ended
    assert failed.retryable
    assert "checksum" in failed.reason
    decode.wait(Stats, lambda s: dict(s.counters)["kv_transfer_checksum_failures"] == 1)
    again = request(failed.request_id, prompt(40), attempt=1, salt=failed.request_id)
    corrupt.prefill(again, decode.reserve(again, corrupt))
    decode.start(again, corrupt.wait_chunks(again.request_id, 1, 1)[0].token_ids)
    assert decode.wait_chunks(again.request_id, 7, 1)[-1].finish_reason == "length"
    decode.wait_all_free()


def test_a_lost_router_connection_is_a_new_epoch_with_a_clean_ledger(workers: Workers) -> None:
    old, corrupt = workers.decode, workers.connection("corrupt")
    old.generate(request("dropped", prompt(30), max_tokens=400))
    old.reserve(request("landing", prompt(200), salt="landing"), corrupt)
    old.wait_chunks("dropped", 2)
    old.drop()
    new = workers.router.connection("d", after=old)
    workers.decode = new
    assert new.hello.worker.epoch == old.hello.worker.epoch + 1
    assert new.wait_all_free().ack_seq == 0
    new.wait_at_rest()
    assert not new.chunks("dropped")
    # It serves, and pages arrive under the new epoch.
    what = request("after-drop", prompt(60), salt="after-drop")
    corrupt.prefill(what, new.reserve(what, corrupt))
    new.wait_end_of_transfer(what)
    new.cancel(what)
    new.wait_all_free()


@pytest.mark.parametrize("by", ["signal"])
def test_a_drained_worker_finishes_refuses_and_exits(workers: Workers, by: str) -> None:
    process, drained = workers.processes["drained"], workers.connection("drained")
    drained.generate(request("last", prompt(30), max_tokens=450))
    drained.wait_chunks("last", 1)
    if by == "signal":
        process.terminate()
    else:
        drained.send(Drain())
    drained.wait(Credits, lambda c: (c.free_slots, c.free_pages, c.free_tokens) == (0, 0, 0))
    drained.generate(request("late", prompt(5)))
    refusal = drained.wait_failed_or_lost("late")
    assert refusal is None or refusal.retryable
    chunks = drained.wait_chunks("last", 450)
    assert chunks[-1].finish_reason == "length"
    assert sum(len(chunk.token_ids) for chunk in chunks) == 450
    drained.wait_lost()
    assert process.wait() == 0


def test_ranks_end_when_their_leader_is_killed(workers: Workers) -> None:
    workers.connection("headless")
    process = workers.processes["headless"]
    (rank_pid,) = process.rank_pids()
    process.kill()
    wait_gone(rank_pid)


def test_a_group_ends_when_one_of_its_ranks_is_killed_and_its_requests_fail(workers: Workers) -> None:
    decode, crippled = workers.decode, workers.connection("crippled")
    process = workers.processes["crippled"]
    what = request("limping", prompt(100), salt="limping")
    reserved = decode.reserve(what, crippled)
    (rank_pid,) = process.rank_pids()
    os.kill(rank_pid, signal.SIGKILL)
    crippled.prefill(what, reserved)
    crippled.wait_lost()
    assert process.wait() == 1
    assert "rank 1" in process.log
    decode.cancel(what)
    decode.wait_all_free()


def test_a_group_ends_when_one_of_its_ranks_hangs(workers: Workers) -> None:
    decode, frozen = workers.decode, workers.connection("frozen")
    process = workers.processes["frozen"]
    what = request("stuck", prompt(100), salt="stuck")
    reserved = decode.reserve(what, frozen)
    (rank_pid,) = process.rank_pids()
    os.kill(rank_pid, signal.SIGSTOP)
    try:
        frozen.prefill(what, reserved)
        frozen.wait_lost()
    finally:
        os.kill(rank_pid, signal.SIGKILL)
    assert process.wait() == 1
    assert "stuck in one step for 2 s" in process.log
    assert "all_reduce" in process.log  # where it was
    decode.cancel(what)
    decode.wait_all_free()


def test_a_worker_waits_for_its_router_and_not_for_a_stranger_at_its_port(workers: Workers) -> None:
    with held_port() as port, WorkerProcess(workers.folder, "early", "decode", workers.model_dir, port) as process:
        while "does not answer yet" not in process.log:
            assert process.process.poll() is None
            time.sleep(0.05)
        with ScriptedRouter(port) as router:
            early = router.connection("early")
            early.generate(request("first", prompt(3)))
            assert early.wait_chunks("first", 8)
        with ScriptedRouter(port, rejection="wrong token"):
            while "is not ours any more: wrong token" not in process.log:
                assert process.process.poll() is None
                time.sleep(0.05)
        with ScriptedRouter(port) as router:
            early = router.connection("early")
            early.generate(request("second", prompt(3)))
            assert early.wait_chunks("second", 8)


def test_a_worker_whose_first_router_rejects_it_says_so_and_exits(workers: Workers) -> None:
    with (
        ScriptedRouter(rejection="wrong token") as router,
        WorkerProcess(workers.folder, "unwanted", "decode", workers.model_dir, router.port) as process,
    ):
        assert process.wait() == 1
        assert "the router rejected this worker: wrong token" in process.log


def test_a_worker_without_a_model_says_so_and_exits(workers: Workers, tmp_path: Path) -> None:
    with WorkerProcess(tmp_path, "bare", "decode", tmp_path, workers.router.port) as process:
        assert process.wait() == 1
        assert "config.json" in process.log.splitlines()[-1]


def test_bad_settings_are_named_before_anything_starts(workers: Workers, tmp_path: Path) -> None:
    with WorkerProcess(tmp_path, "odd", "decode", workers.model_dir, workers.router.port, tpp=3) as process:
        assert process.wait() == 2
        assert "tpp" in process.log


def test_a_group_on_a_host_without_its_model_fetches_it_once(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that the driver has fetched, by the manifest. One of two ranks does, and the other waits."""
    source = DirectorySource(WeightsUrl("file", str(workers.model_dir)))
    drivers = HostCache(str(tmp_path / "driver")).fetch(source, plan_version(source, None), lambda text: None)
    manifest = Manifest.read(drivers, DigestCache(None))
    assert manifest.origin is not None
    manifest = replace(manifest, origin=replace(manifest.origin, cache_path=None))
    drivers.rename(tmp_path / "of another host")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = {"manifest": asdict(manifest), "model_version": "1", "tp": 2}
    with WorkerProcess(tmp_path, "elsewhere", "decode", drivers, workers.router.port, **settings):
        elsewhere = workers.connection("elsewhere")
        elsewhere.generate(request("fetched", prompt(3)))
        assert elsewhere.wait_chunks("fetched", 8)
    (fetched,) = (tmp_path / "cache" / "slipstream" / "models").glob("*/*/config.json")
    assert fetched.parent.name == drivers.name
    assert "fetching (" in (tmp_path / "elsewhere.log").read_text()
