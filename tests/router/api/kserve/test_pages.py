"""Health, metadata, statistics, the repository, shared memory and settings over HTTP, and who may ask for them."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest

from slipstream.router.config.kserve_config import KServeHttpConfig, RestrictedApis
from slipstream.router.tensor_memory.client_regions import ClientFile, ClientRegions
from tests.support.router.fake_cluster import run
from tests.support.router.fake_tensor_service import FakeSubmission, add_sub
from tests.support.router.kserve_site import AB, ADD_SUB, KServeSite, binary_body, floats, given, kserve_site

MEMORY = "/v2/systemsharedmemory"
TRACE, LOGGING = "/v2/trace/setting", "/v2/logging"


def test_health_has_a_status_and_no_body() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/add_sub/versions/1/ready"):
                status, _, body = await site.call("GET", path)
                assert (status, body) == (200, b"")
            site.models.is_ready_now = False
            assert (await site.call("GET", "/v2/health/ready"))[0] == 400
            status, _, body = await site.call("GET", "/v2/models/nope/ready")
            assert (status, body) == (400, b'{"error":"Model version not ready"}')

    run(main)


def test_metadata_and_statistics_have_the_fields_of_the_protocol() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            server = await site.json("GET", "/v2")
            assert server["name"] == "triton"
            assert "binary_tensor_data" in server["extensions"]
            assert "cuda_shared_memory" not in server["extensions"], "it is refused"
            model = await site.json("GET", "/v2/models/add_sub")
            assert list(model) == ["name", "versions", "platform", "inputs", "outputs"]
            assert model["inputs"][0] == {"name": "A", "datatype": "FP32", "shape": [-1, 4]}
            assert (await site.json("GET", "/v2/models/add_sub/versions/01/config"))["name"] == "add_sub"
            (stats,) = (await site.json("GET", "/v2/models/add_sub/stats"))["model_stats"]
            assert stats["inference_stats"]["success"] == {"count": 1, "ns": 1000}
            assert stats["response_stats"] == {}
            assert len((await site.json("GET", "/v2/models/stats"))["model_stats"]) == len(site.models.specs)

    run(main)


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v2/", 404, "Not Found"),
        ("GET", "/v2/models/add_sub/versions/x", 404, "Not Found"),
        ("GET", "/v2/models/add_sub/versions/1/trace/setting", 404, "Not Found"),
        ("PUT", "/v2/nothing", 404, "Not Found"),
        ("GET", "/v2/models/add_sub/infer", 405, "Method Not Allowed"),
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("GET", "/v2/repository/index", 405, "Method Not Allowed"),
        ("OPTIONS", "/v2/models/add_sub/infer", 405, "Method Not Allowed"),
        ("GET", "/v2/models/nope", 404, "Request for unknown model: 'nope' is not found"),
        ("GET", "/v2/models/add_sub/versions/3", 404, "Request for unknown model: 'add_sub' version 3 is not found"),
        ("GET", "/v2/models/nope/trace/setting", 400, "Request for unknown model : nope"),
        ("GET", f"{MEMORY}/region/r/status", 404, "Unable to find system shared memory region: 'r'"),
        ("POST", "/v2/repository/x/models/m/load", 501, "'repository_name' specification is not supported"),
    ],
)
def test_paths_that_are_not_served_are_refused_as_by_triton(method: str, path: str, status: int, text: str) -> None:
    async def main() -> None:
        async with kserve_site() as site:
            got, _, body = await site.call(method, path)
            assert (got, orjson.loads(body)) == (status, {"error": text})

    run(main)


def test_models_are_listed_loaded_with_files_and_unloaded() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            listed = await site.json("POST", "/v2/repository/index")
            assert {"name": "add_sub", "version": "1", "state": "READY"} in listed
            assert {"name": "never_loaded"} in listed
            assert {"name": "never_loaded"} not in await site.json("POST", "/v2/repository/index", {"ready": True})
            code = base64.b64encode(b"code").decode()
            parameters = {"config": "{}", "file:1/model.py": code}
            path = "/v2/repository/models/m"
            status, _, body = await site.post(f"{path}/load", {"parameters": parameters})
            assert (status, body) == (200, b"")
            assert site.models.loads == [("m", "{}", {"1/model.py": b"code"})]
            assert (await site.error(f"{path}/load", {"parameters": {"x": "y"}}))[0] == 500
            assert (await site.error(f"{path}/load", {"parameters": {"file:a": "!"}}))[0] == 400
            assert (await site.error("/v2/repository/models/broken/load"))[0] == 500
            await site.post(f"{path}/unload", {"parameters": {"unload_dependents": True}})
            assert site.models.unloads == [("m", True)]

    run(main)


@pytest.fixture
def shared_file() -> Iterator[str]:
    """A client's file in shared memory with the numbers 0 to 1023; yields its key."""
    path = Path(f"/dev/shm/test-kserve-{os.getpid()}")
    path.write_bytes(np.arange(1024, dtype=np.float32).tobytes())
    yield f"/{path.name}"
    path.unlink()


def placed(region: str, size: int, offset: int = 0) -> dict[str, object]:
    return {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}


async def register(site: KServeSite, name: str, key: str, size: int, offset: int = 0) -> None:
    fields = {"key": key, "byte_size": size, "offset": offset}
    assert (await site.post(f"{MEMORY}/region/{name}/register", fields))[0] == 200


def test_inputs_are_read_from_shared_memory_and_outputs_written_there(shared_file: str) -> None:
    async def main() -> None:
        async with kserve_site() as site:
            await register(site, "in", shared_file, 64)
            await register(site, "out", shared_file, 64, 64)
            assert await site.json("GET", f"{MEMORY}/region/in/status") == [
                {"name": "in", "key": shared_file, "offset": 0, "byte_size": 64}
            ]
            inputs = [
                given("A", "FP32", [1, 4], **placed("in", 16)),
                given("B", "FP32", [1, 4], **placed("in", 16, 16)),
            ]
            outputs = [{"name": "SUM", "parameters": placed("out", 16)}, {"name": "DIFF"}]
            answer = await site.json("POST", ADD_SUB, {"inputs": inputs, "outputs": outputs})
            assert answer["outputs"][0] == {"name": "SUM", "datatype": "FP32", "shape": [1, 4]}
            assert bytes(site.regions.slice_of("out", 0, 16).view) == floats(4, 6, 8, 10)
            outputs[0]["parameters"] = placed("out", 8)
            _, text = await site.error(ADD_SUB, {"inputs": inputs, "outputs": outputs})
            assert "(8 bytes) should be at least 16 bytes to hold the results" in text
            for place, expected in (
                (placed("zz", 16), "Unable to find shared memory region: 'zz'"),
                (placed("in", 16, 64), "Invalid offset for shared memory region: 'in'"),
                (placed("in", 16, 60), "Invalid offset + byte size for shared memory region: 'in'"),
            ):
                body = {"inputs": [given("A", "FP32", [1, 4], **place), inputs[1]]}
                assert (await site.error(ADD_SUB, body))[1] == expected
            assert (await site.post(f"{MEMORY}/unregister"))[0] == 200
            assert await site.json("GET", f"{MEMORY}/status") == []

    run(main)


def test_a_file_that_has_become_shorter_is_refused(shared_file: str) -> None:
    async def main() -> None:
        async with kserve_site() as site:
            await register(site, "r", shared_file, 64)
            os.truncate(f"/dev/shm{shared_file}", 0)
            outputs = [{"name": "SUM", "parameters": placed("r", 16)}]
            text = f"Invalid shared memory region: '{shared_file}'"
            assert await site.error(ADD_SUB, {"inputs": AB, "outputs": outputs}) == (500, text)

    run(main)


def test_a_file_that_is_cut_off_while_its_request_runs_is_an_error_of_the_request(shared_file: str) -> None:
    def answer(submission: FakeSubmission) -> None:
        os.truncate(f"/dev/shm{shared_file}", 0)
        add_sub(submission)

    async def main() -> None:
        async with kserve_site() as site:
            await register(site, "r", shared_file, 64)
            site.models.answers["add_sub"] = answer
            outputs = [{"name": "SUM", "parameters": placed("r", 16)}]
            text = f"Invalid shared memory region: '{shared_file.removeprefix('/')}'"
            assert await site.error(ADD_SUB, {"inputs": AB, "outputs": outputs}) == (500, text)

    run(main)


def test_a_file_is_written_to_although_it_was_cut_off_just_before(shared_file: str) -> None:
    regions = ClientRegions()
    regions.register("r", shared_file, 0, 64)
    region = regions.slice_of("r", 16, 4).region
    assert isinstance(region, ClientFile)
    os.truncate(f"/dev/shm{shared_file}", 0)
    region.write(16, memoryview(b"late"))
    assert Path(f"/dev/shm{shared_file}").read_bytes()[16:] == b"late"


def test_registrations_that_cannot_be_are_refused(shared_file: str) -> None:
    async def main() -> None:
        async with kserve_site() as site:
            path = f"{MEMORY}/region/r/register"
            for fields, expected in (
                ({}, (400, "Shared memory register request has no 'key' field")),
                ({"key": shared_file}, (400, "Shared memory register request has no 'byte_size' field")),
                ({"key": "/absent", "byte_size": 4}, (500, "Unable to open shared memory region: '/absent'")),
                ({"key": "../shm/x", "byte_size": 4}, (500, "Unable to open shared memory region: '../shm/x'")),
                (
                    {"key": shared_file, "byte_size": 9999},
                    (400, "failed to register shared memory region 'r': invalid args"),
                ),
            ):
                assert await site.error(path, fields) == expected
            own = site.pool.allocate(70_000)
            key = own.slice.region.key
            assert (await site.error(path, {"key": key, "byte_size": 4}))[0] == 500
            own.release()
            await register(site, "r", shared_file, 4)
            twice = {"key": shared_file, "byte_size": 4}
            assert await site.error(path, twice) == (400, "shared memory region 'r' already in manager")
            assert await site.json("GET", "/v2/cudasharedmemory/status") == []

    run(main)


def test_settings_of_traces_are_the_servers_unless_a_model_has_its_own() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            own = "/v2/models/add_sub/trace/setting"
            await site.post(TRACE, {"trace_rate": "5x", "trace_count": "3", "zz": 1})
            changed = await site.json("POST", own, {"trace_rate": "11"})
            assert (changed["trace_rate"], changed["trace_count"], changed["trace_level"]) == ("11", "3", ["OFF"])
            assert (await site.json("GET", TRACE))["trace_rate"] == "5"
            assert (await site.json("POST", own, {"trace_rate": None}))["trace_rate"] == "5"
            assert (await site.json("POST", TRACE, {"trace_rate": None}))["trace_rate"] == "1000"
            for fields, expected in (
                ({"trace_rate": "x"}, (400, "Unable to parse 'trace_rate', got: x")),
                ({"trace_count": "-2"}, (400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2")),
                ({"trace_level": ["OFF", "TENSORS"]}, (400, "Expect only one trace level 'OFF' is specified")),
                ({"trace_file": "x"}, (501, "trace file location can not be updated through network protocol")),
            ):
                assert await site.error(TRACE, fields) == expected

    run(main)


def test_settings_of_the_log_change_one_by_one() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            before = await site.json("GET", LOGGING)
            assert before["log_info"] is True
            changed = await site.json("POST", LOGGING, {"log_verbose_level": 1, "log_format": "ISO8601"})
            assert changed == {**before, "log_verbose_level": 1, "log_format": "ISO8601"}
            assert (await site.error(LOGGING, {"log_format": "zz"}))[0] == 503
            assert (await site.error(LOGGING, {"log_info": 1}))[0] == 500
            await site.post(LOGGING, {"log_verbose_level": 0, "log_format": "default"})

    run(main)


def key_file(folder: Path) -> Path:
    path = folder / "keys.yaml"
    digest = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("admin", "user", "other", "limited")}
    path.write_text(
        f"keys:\n- {{name: a, sha256: {digest['admin']}, admin: true}}\n- {{name: u, sha256: {digest['user']}}}\n"
        f"- {{name: o, sha256: {digest['other']}, models: [another]}}\n"
        f"- {{name: l, sha256: {digest['limited']}, requests_per_minute: 1}}\n"
    )
    return path


def test_with_keys_health_is_open_and_repositories_are_the_administrators(tmp_path: Path) -> None:
    async def main() -> None:
        async with kserve_site(keys=key_file(tmp_path)) as site:
            user, admin = {"Authorization": "Bearer user"}, {"Authorization": "Bearer admin"}
            assert (await site.call("GET", "/v2/health/ready"))[0] == 200
            assert (await site.error(ADD_SUB, {"inputs": AB}))[0] == 401
            assert (await site.post(ADD_SUB, {"inputs": AB}, user))[0] == 200
            assert site.models.submitted[-1].request.tenant == "u"
            assert (await site.error(ADD_SUB, {"inputs": AB}, {"Authorization": "Bearer other"}))[0] == 403
            limited = {"Authorization": "Bearer limited"}
            status, answered, _ = await site.post(ADD_SUB, {"inputs": AB}, limited)
            assert (status, answered["x-ratelimit-remaining-requests"]) == (200, "0")
            assert (await site.error(ADD_SUB, {"inputs": AB}, limited))[0] == 429
            for path in ("/v2/repository/index", f"{MEMORY}/unregister", TRACE, LOGGING):
                assert (await site.error(path, {}, user))[0] == 403
                assert (await site.post(path, {}, admin))[0] == 200
            body, headers = binary_body({"inputs": [given("X", "FP32", [50_000], binary_data_size=200_000)]})
            assert (await site.post("/v2/models/raw/infer", body + bytes(200_000), headers))[0] == 401
            assert site.pool.usage.num_leases == 0

    run(main)


def test_restricted_calls_need_their_header() -> None:
    async def main() -> None:
        restricted = RestrictedApis(("inference", "health"), "My-Key", "secret")
        async with kserve_site(KServeHttpConfig(restricted=(restricted,))) as site:
            text = "This API is restricted, expecting header 'My-Key'"
            assert await site.error(ADD_SUB, {"inputs": AB}) == (403, text)
            assert (await site.post(ADD_SUB, {"inputs": AB}, {"My-Key": "secret"}))[0] == 200
            assert (await site.call("GET", "/v2/health/live"))[0] == 403
            assert (await site.call("GET", "/v2"))[0] == 200

    run(main)
