"""What requests leave behind: nothing that waits for the garbage collector, which a router seldom runs."""

from __future__ import annotations

import gc

import pytest

from slipstream.router.tensors.infer_error import InferError
from tests.support.router.fake_cluster import run
from tests.support.router.fake_tensor_service import FakeSubmission
from tests.support.router.kserve_site import AB, ADD_SUB, kserve_site, request_bytes
from tests.support.router.raw_client import Client


def fail(submission: FakeSubmission) -> None:
    submission.fail(InferError("not now"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (ADD_SUB, {"inputs": AB}),
        (ADD_SUB, {"inputs": AB[:1]}),
        ("/v2/models/kept/infer", {"inputs": AB}),
        ("/v2/models/repeat/generate_stream", {"IN": [1]}),
    ],
)
def test_a_request_leaves_no_cycle_of_objects(path: str, body: object) -> None:
    async def main() -> None:
        async with kserve_site() as site:
            site.models.answers["kept"] = fail
            client = await Client.connect(site.port)

            async def ask() -> None:
                client.send(request_bytes("POST", path, body))
                await client.response()
                site.models.submitted.clear()

            for _ in range(3):
                await ask()
            gc.collect()
            gc.disable()
            try:
                for _ in range(100):
                    await ask()
                assert gc.collect() < 50  # some may be of threads of tests before; with a cycle for each, there are 100
            finally:
                gc.enable()
            await client.close()

    run(main)
