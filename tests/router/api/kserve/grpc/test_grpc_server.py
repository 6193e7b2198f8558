"""RPCs with one answer, over real connections."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import ssl
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2 as pb

from slipstream.router.access.access import Access
from slipstream.router.api.kserve.grpc.grpc_server import GrpcServer
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.config.kserve_config import GrpcTlsConfig, KServeGrpcConfig, RestrictedApis
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.tensor import Tensor
from slipstream.router.tls import server_tls
from slipstream.router.tls.expiry import expires_at_s
from slipstream.router.tls.tls_files import TlsFileError
from tests.support.router.fake_tensor_service import fake_models
from tests.support.router.grpc_lab import (
    SERVICE,
    VECTOR,
    access_with_keys,
    grpc_lab,
    infer_request,
    refused,
    repeat_request,
)
from tests.support.router.hub_server import own_certificate
from tests.support.router.in_loop import in_loop
from tests.support.router.until import until

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


@in_loop
async def test_an_inference_has_its_models_outputs_in_raw_bytes() -> None:
    async with grpc_lab() as lab:
        response = await lab.infer(infer_request(request_id="7"))
    assert (response.model_name, response.model_version, response.id) == ("add_sub", "1", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
        ("SUM", "FP32", [1, 4]),
        ("DIFF", "FP32", [1, 4]),
    ]
    assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [0, 2, 4, 6]


@in_loop
async def test_tritons_own_client_is_served() -> None:
    def infer(port: int) -> list[float]:
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.is_server_live()
            assert client.get_model_metadata("add_sub").inputs[0].shape == [-1, 4]
            inputs = [tritonclient.grpc.InferInput(name, [1, 4], "FP32") for name in "AB"]
            for each in inputs:
                each.set_data_from_numpy(VECTOR[None])
            found: list[float] = client.infer("add_sub", inputs).as_numpy("SUM")[0].tolist()
            return found

    async with grpc_lab() as lab:
        with ThreadPoolExecutor(1) as thread:
            assert await asyncio.get_running_loop().run_in_executor(thread, infer, lab.port) == [0, 2, 4, 6]


@in_loop
async def test_messages_may_be_larger_than_4_mb_both_ways() -> None:
    large = np.ones((8, 1_000_000), np.uint8)
    async with grpc_lab() as lab:
        lab.service.specs["add_sub"] = lab.service.specs["repeat"]  # whatever its shape
        lab.service.specs["wide"] = lab.service.specs["kept"]
        lab.service.checks["wide"] = _AcceptsAll()  # type: ignore[assignment]
        lab.service.answers["wide"] = lambda submission: submission.respond({"SUM": submission.array("A")})
        response = await lab.infer(infer_request("wide", ["A"], large, datatype="UINT8"))
    assert response.raw_output_contents[0] == large.tobytes()


class _AcceptsAll:
    def check(self, request: object) -> int:
        return 1


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@in_loop
async def test_compressed_requests_are_served(compression: grpc.Compression) -> None:
    async with grpc_lab(KServeGrpcConfig(port=0, compression="high")) as lab:
        response = await lab.infer(infer_request(), compression=compression)
    assert len(response.outputs) == 2


@in_loop
async def test_errors_have_the_status_of_their_code() -> None:
    async with grpc_lab() as lab:
        async with refused(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'nope' is not found"):
            await lab.infer(infer_request("nope"))
        async with refused(grpc.StatusCode.INVALID_ARGUMENT, "expected 2 inputs but got 1 inputs for model 'add_sub'"):
            await lab.infer(infer_request(inputs=["A"]))
        async with refused(grpc.StatusCode.UNIMPLEMENTED, "ModelInfer RPC doesn't support models with decoupled"):
            await lab.infer(repeat_request(1))
        lab.service.answers["add_sub"] = lambda each: each.fail(InferError("no", InferErrorCode.UNAVAILABLE))
        async with refused(grpc.StatusCode.UNAVAILABLE, "no"):
            await lab.infer(infer_request())
        broken = lab.channel.unary_unary(f"{SERVICE}ModelInfer")
        async with refused(grpc.StatusCode.INTERNAL, "Unable to parse request"):
            await broken(b"\xff\xff")
        async with refused(grpc.StatusCode.UNIMPLEMENTED):
            await lab.channel.unary_unary(f"{SERVICE}Nope")(b"")


@in_loop
@pytest.mark.parametrize("letter", ["x", "\n", "é", "\U0001f600", "\udc80"])
async def test_of_a_long_error_as_much_arrives_as_a_status_can_carry(letter: str) -> None:
    async with grpc_lab() as lab:
        error = InferError("begin %41 " + letter * 50_000, InferErrorCode.INTERNAL)
        lab.service.answers["add_sub"] = lambda each: each.fail(error)
        async with refused(
            grpc.StatusCode.INTERNAL, "begin %41 " + letter.encode("utf-8", "backslashreplace").decode()
        ):
            await lab.infer(infer_request())


@in_loop
async def test_a_cancelled_rpc_cancels_its_request() -> None:
    async with grpc_lab() as lab:
        call = asyncio.create_task(lab.infer(infer_request("kept")))
        await until(lambda: bool(lab.service.running))
        call.cancel()
        await until(lambda: lab.service.submitted[0].is_cancelled)
        await asyncio.wait([call])


@in_loop
async def test_a_passed_deadline_cancels_its_request() -> None:
    async with grpc_lab() as lab:
        async with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
            await lab.infer(infer_request("kept"), timeout=0.2)
        await until(lambda: lab.service.submitted[0].is_cancelled)


@in_loop
async def test_a_response_that_comes_after_the_client_has_left_is_released() -> None:
    async with grpc_lab() as lab:
        call = asyncio.create_task(lab.infer(infer_request("kept")))
        await until(lambda: bool(lab.service.running))
        [submission] = lab.service.running
        submission.is_over = True  # so that cancelling does not end it
        call.cancel()
        await until(lambda: submission.is_cancelled)
        submission.is_over = False
        submission.respond({"SUM": VECTOR[None]})
        await asyncio.wait([call])


@in_loop
async def test_classes_are_given_instead_of_an_output() -> None:
    request = infer_request()
    request.outputs.add(name="SUM").parameters["classification"].int64_param = 2
    async with grpc_lab() as lab:
        response = await lab.infer(request)
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("BYTES", [1, 2])
    assert response.raw_output_contents[0] == b"\n\x00\x00\x006.000000:3\n\x00\x00\x004.000000:2"


@in_loop
async def test_classes_of_an_output_that_does_not_fit_its_shape_are_an_error_of_its_request() -> None:
    request = infer_request("kept")
    request.outputs.add(name="SUM").parameters["classification"].int64_param = 2
    async with grpc_lab() as lab:
        call = asyncio.create_task(lab.infer(request))
        await until(lambda: bool(lab.service.running))
        [submission] = lab.service.running
        response = submission.response({})
        response.outputs = [Tensor("SUM", "FP32", (1, 4), b"abc")]
        submission.respond_with(response)
        async with refused(grpc.StatusCode.INTERNAL, "output 'SUM': its shape does not match its size"):
            await call


@in_loop
async def test_inputs_and_outputs_can_lie_in_the_clients_shared_memory() -> None:
    name = f"kserve-test-{uuid.uuid4().hex}"
    path = Path("/dev/shm") / name
    path.write_bytes(VECTOR.tobytes() + bytes(48))
    request = infer_request()
    del request.raw_input_contents[:]
    for each in request.inputs:
        each.parameters["shared_memory_region"].string_param = "r"
        each.parameters["shared_memory_byte_size"].int64_param = 16
    output = request.outputs.add(name="SUM")
    output.parameters["shared_memory_region"].string_param = "r"
    output.parameters["shared_memory_byte_size"].int64_param = 16
    output.parameters["shared_memory_offset"].int64_param = 32
    try:
        async with grpc_lab() as lab:
            register = pb.SystemSharedMemoryRegisterRequest(name="r", key=f"/{name}", byte_size=64)
            await lab.call("SystemSharedMemoryRegister", register)
            async with refused(grpc.StatusCode.ALREADY_EXISTS, "shared memory region 'r' already in manager"):
                await lab.call("SystemSharedMemoryRegister", register)
            register.name = ""
            async with refused(grpc.StatusCode.INTERNAL, f"Invalid shared memory region: '/{name}'"):
                await lab.call("SystemSharedMemoryRegister", register)
            status = await lab.call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest())
            assert [(each.key, each.byte_size) for each in status.regions.values()] == [(f"/{name}", 64)]
            response = await lab.infer(request)
            assert list(response.raw_output_contents) == [b""]
            output.parameters["shared_memory_byte_size"].int64_param = 8
            async with refused(grpc.StatusCode.INTERNAL, "output 'SUM' (8 bytes) should be at least 16 bytes"):
                await lab.infer(request)
            await lab.call("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest())
            async with refused(grpc.StatusCode.NOT_FOUND, "Unable to find shared memory region: 'r'"):
                await lab.infer(request)
        assert np.frombuffer(path.read_bytes()[32:48], np.float32).tolist() == [0, 2, 4, 6]
    finally:
        path.unlink()


@in_loop
async def test_health_follows_the_readiness_of_the_server() -> None:
    async with grpc_lab() as lab:
        check = lab.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == SERVING
        assert (await lab.call("ServerReady", pb.ServerReadyRequest())).ready
        lab.service.is_ready_now = False
        assert await check(b"") == NOT_SERVING
        assert not (await lab.call("ServerReady", pb.ServerReadyRequest())).ready
        assert (await lab.call("ServerLive", pb.ServerLiveRequest())).live


@in_loop
async def test_calls_about_models_wait_until_those_of_the_start_are_loaded() -> None:
    async with grpc_lab() as lab:
        lab.server.loaded.clear()
        call = asyncio.create_task(lab.infer(infer_request()))
        assert (await lab.call("ServerLive", pb.ServerLiveRequest())).live
        assert not (await lab.call("ModelReady", pb.ModelReadyRequest(name="nope"))).ready
        async with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
            await lab.call("ModelMetadata", pb.ModelMetadataRequest(name="add_sub"), timeout=0.1)
        async with refused(grpc.StatusCode.DEADLINE_EXCEEDED):  # or the load of the start would come after it
            load = pb.RepositoryModelLoadRequest(model_name="add_sub")
            await lab.call("RepositoryModelLoad", load, timeout=0.1)
        assert not call.done()
        lab.server.loaded.set()
        assert (await call).model_name == "add_sub"


@in_loop
async def test_models_are_described() -> None:
    async with grpc_lab() as lab:
        metadata = await lab.call("ModelMetadata", pb.ModelMetadataRequest(name="add_sub"))
        assert (metadata.platform, list(metadata.versions)) == ("python", ["1"])
        assert [list(each.shape) for each in metadata.outputs] == [[-1, 4], [-1, 4]]
        config = await lab.call("ModelConfig", pb.ModelConfigRequest(name="add_sub"))
        assert (config.config.name, config.config.max_batch_size) == ("add_sub", 8)
        assert (await lab.call("ModelReady", pb.ModelReadyRequest(name="add_sub"))).ready
        assert not (await lab.call("ModelReady", pb.ModelReadyRequest(name="nope"))).ready
        server = await lab.call("ServerMetadata", pb.ServerMetadataRequest())
        assert "system_shared_memory" in server.extensions
        statistics = await lab.call("ModelStatistics", pb.ModelStatisticsRequest(name="add_sub"))
        assert statistics.model_stats[0].inference_count == 3
        assert statistics.model_stats[0].inference_stats.success.ns == 1000


@in_loop
async def test_the_repository_is_controlled() -> None:
    async with grpc_lab() as lab:
        index = await lab.call("RepositoryIndex", pb.RepositoryIndexRequest())
        assert [(each.name, each.state) for each in index.models][-1] == ("never_loaded", "")
        assert len((await lab.call("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))).models) == 4
        load = pb.RepositoryModelLoadRequest(model_name="m")
        load.parameters["config"].string_param = "{}"
        load.parameters["file:1/model.py"].bytes_param = b"x"
        await lab.call("RepositoryModelLoad", load)
        assert lab.service.loads == [("m", "{}", {"1/model.py": b"x"})]
        unload = pb.RepositoryModelUnloadRequest(model_name="m")
        unload.parameters["unload_dependents"].bool_param = True
        await lab.call("RepositoryModelUnload", unload)
        assert lab.service.unloads == [("m", True)]
        async with refused(grpc.StatusCode.INTERNAL, "failed to load 'broken', failed to poll from model repository"):
            await lab.call("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="broken"))
        load.parameters["other"].string_param = "x"
        async with refused(grpc.StatusCode.INVALID_ARGUMENT, "unrecognized load parameter 'other'."):
            await lab.call("RepositoryModelLoad", load)
        async with refused(grpc.StatusCode.UNIMPLEMENTED, "'repository_name' specification is not supported"):
            await lab.call("RepositoryIndex", pb.RepositoryIndexRequest(repository_name="x"))


@in_loop
async def test_trace_and_log_settings_are_shown_and_changed() -> None:
    async with grpc_lab() as lab:
        change = pb.TraceSettingRequest(model_name="add_sub")
        change.settings["trace_rate"].value.append("7")
        shown = await lab.call("TraceSetting", change)
        assert list(shown.settings["trace_rate"].value) == ["7"]
        change.settings["trace_rate"].value.append("8")
        async with refused(grpc.StatusCode.INVALID_ARGUMENT, "expect only 1 value for 'trace_rate'"):
            await lab.call("TraceSetting", change)
        async with refused(grpc.StatusCode.INVALID_ARGUMENT, "Request for unknown model : nope"):
            await lab.call("TraceSetting", pb.TraceSettingRequest(model_name="nope"))
        logs = await lab.call("LogSettings", pb.LogSettingsRequest())
        assert logs.settings["log_info"].bool_param
        wrong = pb.LogSettingsRequest()
        wrong.settings["log_info"].string_param = "x"
        async with refused(grpc.StatusCode.INVALID_ARGUMENT, "expect boolean for 'log_info'"):
            await lab.call("LogSettings", wrong)
        wrong.settings["log_info"].bool_param = True
        wrong.settings["log_format"].string_param = "x"
        async with refused(grpc.StatusCode.INVALID_ARGUMENT, "invalid argument for log_format, got: x"):
            await lab.call("LogSettings", wrong)


@in_loop
async def test_a_restricted_protocol_needs_its_header() -> None:
    restricted = RestrictedApis(("model-repository",), "triton-grpc-protocol-admin", "secret")
    async with grpc_lab(KServeGrpcConfig(port=0, restricted=(restricted,))) as lab:
        index = pb.RepositoryIndexRequest()
        expecting = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"
        async with refused(grpc.StatusCode.UNAVAILABLE, expecting):
            await lab.call("RepositoryIndex", index)
        async with refused(grpc.StatusCode.UNAVAILABLE, expecting):
            await lab.call("RepositoryIndex", index, metadata=[("triton-grpc-protocol-admin", "wrong")])
        await lab.call("RepositoryIndex", index, metadata=[("triton-grpc-protocol-admin", "secret")])
        await lab.infer(infer_request())


@in_loop
async def test_with_keys_a_caller_needs_one_that_allows_what_it_asks_for(tmp_path: Path) -> None:
    access = access_with_keys(tmp_path)
    access.open()
    user, boss = [("authorization", "Bearer user")], [("authorization", "Bearer boss")]
    async with grpc_lab(access=access) as lab:
        assert (await lab.call("ServerLive", pb.ServerLiveRequest())).live
        assert await lab.channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == SERVING
        async with refused(grpc.StatusCode.UNAUTHENTICATED, "No API key was given."):
            await lab.infer(infer_request())
        async with refused(grpc.StatusCode.UNAUTHENTICATED, "Incorrect API key provided."):
            await lab.infer(infer_request(), metadata=[("authorization", "Bearer other")])
        async with refused(grpc.StatusCode.PERMISSION_DENIED, "may not use the model 'kept'"):
            await lab.infer(infer_request("kept"), metadata=user)
        async with refused(grpc.StatusCode.PERMISSION_DENIED, "administrator"):
            await lab.call("RepositoryIndex", pb.RepositoryIndexRequest(), metadata=user)
        await lab.call("RepositoryIndex", pb.RepositoryIndexRequest(), metadata=boss)
        for _ in range(2):
            await lab.infer(infer_request(), metadata=user)
        assert lab.service.submitted[0].request.tenant == "lab"
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "Rate limit reached"):
            await lab.infer(infer_request(), metadata=user)
    assert [counts.num_requests for account, counts in access.usage if account.key == "user"] == [2]
    await access.close()


@in_loop
async def test_ids_traces_and_chosen_headers_come_with_the_metadata() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    metadata = [("x-request-id", "mine"), ("traceparent", trace), ("my-header", "v"), ("other", "w")]
    async with grpc_lab(KServeGrpcConfig(port=0, forward_headers="^my-")) as lab:
        await lab.infer(infer_request(), metadata=metadata)
        request = lab.service.submitted[0].request
    assert (request.request_id, request.trace_id) == ("mine", "0af7651916cd43dd8448eb211c80319c")
    assert request.parameters == {"my-header": "v"}


@in_loop
async def test_an_inference_that_was_accepted_says_its_id_whether_it_succeeds_or_fails() -> None:
    request = infer_request().SerializeToString()
    async with grpc_lab() as lab:
        infer = lab.channel.unary_unary(f"{SERVICE}ModelInfer")
        given = infer(request, metadata=[("x-request-id", "mine")])
        await given
        assert tuple(await given.trailing_metadata()) == (("x-request-id", "mine"),)
        lab.service.answers["add_sub"] = lambda each: each.fail(InferError("no", InferErrorCode.UNAVAILABLE))
        failed = infer(request)
        assert await failed.code() == grpc.StatusCode.UNAVAILABLE
        assert tuple(await failed.trailing_metadata()) == (
            ("x-request-id", lab.service.submitted[-1].request.request_id),
        )


METHODS = (
    "ModelInfer",
    "ModelMetadata",
    "RepositoryModelLoad",
    "SystemSharedMemoryRegister",
    "TraceSetting",
    "LogSettings",
)


@in_loop
async def test_damaged_messages_end_with_a_status_and_leave_nothing_behind() -> None:
    numbers = random.Random(29)
    whole = infer_request(request_id="7", priority=1, own="x").SerializeToString()
    async with grpc_lab() as lab:

        async def send(method: str, message: bytes) -> grpc.StatusCode:
            call = lab.channel.unary_unary(f"{SERVICE}{method}")(message)
            return await call.code()

        codes = set()
        for _ in range(60):
            damaged = bytearray(whole)
            for _ in range(numbers.randrange(1, 4)):
                damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
            cut = bytes(damaged[: numbers.randrange(len(damaged) + 1)])
            codes |= set(await asyncio.gather(*(send(method, cut) for method in METHODS)))
        assert grpc.StatusCode.UNKNOWN not in codes, "a handler has failed"
        assert {grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND} <= codes
        stream = lab.channel.stream_stream(f"{SERVICE}ModelStreamInfer")()
        await stream.write(b"\xff\xff")
        async with refused(grpc.StatusCode.INTERNAL, "Unable to parse request"):
            await stream.read()
        await lab.infer(infer_request())


@in_loop
async def test_with_a_certificate_clients_need_tls(tmp_path: Path) -> None:
    cert, key = own_certificate(tmp_path)
    service = fake_models()
    config = KServeGrpcConfig(port=0, tls=GrpcTlsConfig(cert_file=str(cert), key_file=str(key)))
    with RegionPool() as pool:
        server = GrpcServer(config, KServeServer(service, service), Access(), pool, host="127.0.0.1")
        port = await server.start()
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{port}", trusted) as channel:
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == SERVING
        async with grpc.aio.insecure_channel(f"localhost:{port}") as channel, refused(grpc.StatusCode.UNAVAILABLE):
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        await server.stop()


@in_loop
async def test_with_authorities_of_clients_each_has_to_present_a_certificate(tmp_path: Path) -> None:
    cert, key = own_certificate(tmp_path)
    config = KServeGrpcConfig(port=0, tls=GrpcTlsConfig(str(cert), str(key), client_ca_file=str(cert)))
    service = fake_models()
    with RegionPool() as pool:
        server = GrpcServer(config, KServeServer(service, service), Access(), pool, host="127.0.0.1")
        port = await server.start()
        known = grpc.ssl_channel_credentials(cert.read_bytes(), key.read_bytes(), cert.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{port}", known) as channel:
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == SERVING
        unknown = grpc.ssl_channel_credentials(cert.read_bytes())
        async with (
            grpc.aio.secure_channel(f"localhost:{port}", unknown) as channel,
            refused(grpc.StatusCode.UNAVAILABLE),
        ):
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        await server.stop()


@in_loop
async def test_a_renewed_certificate_is_presented_and_half_of_a_pair_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_tls, "LOOK_EVERY_S", 0.01)
    caplog.set_level(logging.INFO)
    cert, key = own_certificate(tmp_path)
    first, old_key = cert.read_bytes(), key.read_bytes()
    config = KServeGrpcConfig(port=0, tls=GrpcTlsConfig(str(cert), str(key)))
    service = fake_models()
    with RegionPool() as pool:
        server = GrpcServer(config, KServeServer(service, service), Access(), pool, host="127.0.0.1")
        port = await server.start()

        async def presented() -> bytes:
            pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=30)
            return ssl.PEM_cert_to_DER_cert(pem)

        async with grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(first)) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await check(b"") == SERVING
            own_certificate(tmp_path)
            second = ssl.PEM_cert_to_DER_cert(cert.read_text())
            await until(lambda: "was taken up anew" in caplog.text)
            assert await presented() == second
            assert await check(b"") == SERVING  # over the connection that there was
            key.write_bytes(old_key)
            await until(lambda: "the TLS certificate of gRPC stays as it was" in caplog.text)
            assert await presented() == second
        assert server.expires_at_s == expires_at_s(cert.read_text())
        await server.stop()


@in_loop
async def test_a_certificate_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    service = fake_models()
    missing = str(tmp_path / "none.pem")
    config = KServeGrpcConfig(port=0, tls=GrpcTlsConfig(cert_file=missing, key_file=missing))
    with RegionPool() as pool, pytest.raises(TlsFileError, match=r"repository\.grpc\.tls\.cert_file: .*none\.pem"):
        await GrpcServer(config, KServeServer(service, service), Access(), pool, host="127.0.0.1").start()


@in_loop
async def test_a_port_that_is_taken_is_an_error() -> None:
    service = fake_models()
    async with grpc_lab() as lab:
        config = KServeGrpcConfig(port=lab.port)
        second = GrpcServer(config, KServeServer(service, service), Access(), lab.pool, host="127.0.0.1")
        with pytest.raises(OSError, match=f"cannot listen for gRPC at 127.0.0.1:{lab.port}"):
            await second.start()


@in_loop
async def test_a_drain_waits_for_the_requests_that_run_and_answers_others() -> None:
    async with grpc_lab() as lab:
        running = asyncio.create_task(lab.infer(infer_request("kept")))
        await until(lambda: bool(lab.service.running))
        draining = asyncio.create_task(lab.listening.drain(10.0))
        await lab.infer(infer_request())
        assert not draining.done()
        next(iter(lab.service.running)).respond({"SUM": VECTOR, "DIFF": VECTOR})
        await running
        await draining


@in_loop
async def test_requests_that_run_at_the_stop_end_within_the_grace() -> None:
    service = fake_models()
    with RegionPool() as pool:
        server = GrpcServer(KServeGrpcConfig(port=0), KServeServer(service, service), Access(), pool, host="127.0.0.1")
        port = await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            infer = channel.unary_unary(f"{SERVICE}ModelInfer")
            call = asyncio.ensure_future(infer(infer_request("kept").SerializeToString()))
            await until(lambda: bool(service.running))
            stopping = asyncio.create_task(server.stop(20.0))
            [submission] = service.running
            submission.respond({"SUM": VECTOR[None]})
            assert pb.ModelInferResponse.FromString(await call).outputs[0].name == "SUM"
            await stopping


def test_a_client_that_leaves_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @in_loop
    async def log_as_grpcio_does() -> None:
        async with grpc_lab():
            log = logging.getLogger("grpc._cython.cygrpc")
            log.error("ExecuteBatchError raised in core by servicer method [%s]", "/inference")
            log.error("Unexpected [%s] raised by servicer method [%s]", "ValueError", "/inference")

    log_as_grpcio_does()
    assert [record.msg.split()[0] for record in caplog.records if record.levelname == "ERROR"] == ["Unexpected"]


@in_loop
async def test_calls_leave_nothing_for_the_garbage_collector() -> None:
    def left() -> list[str]:
        kinds = ("UnaryCall", "StreamRequest", "AcceptedRequest", "InferRequest")
        return [type(each).__name__ for each in gc.get_objects() if type(each).__name__ in kinds]

    gc.collect()
    gc.disable()
    try:
        async with grpc_lab() as lab:
            await lab.infer(infer_request())
            async with refused(grpc.StatusCode.INVALID_ARGUMENT):
                await lab.infer(infer_request(inputs=("A",)))
            failing = asyncio.create_task(lab.infer(infer_request("kept")))
            await until(lambda: bool(lab.service.running))
            lab.service.submitted[-1].fail(InferError("no", InferErrorCode.INTERNAL))
            async with refused(grpc.StatusCode.INTERNAL):
                await failing
            async with refused(grpc.StatusCode.NOT_FOUND):
                await lab.infer(infer_request("nope"))
            async with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
                await lab.infer(infer_request("kept"), timeout=0.1)
            assert await lab.all_responses(repeat_request(1, 2), infer_request(), infer_request("nope"))
            lab.service.submitted.clear()
            await until(lambda: not left())
    finally:
        gc.enable()
