"""Versions of a tensor model that divide its requests, served by real processes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from slipstream.router.config.tensor_versions_config import TensorMirrorConfig, TensorVersionsConfig
from slipstream.router.observability.explain.explain_infer import infer_explanation, infer_text
from slipstream.router.status.tensor_versions_status import TensorMirrorCounts
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import RepositoryLab, repository_lab
from tests.support.router.until import until

CONFIG = """
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
version_policy { all {} }
"""
TIMES = """
class TritonPythonModel:
    def execute(self, requests):
        if any(value_of(request)[0] == 13 for request in requests):
            raise ValueError("no luck")
        return [response({factor} * value_of(request)) for request in requests]
"""
NINE_TO_ONE = {"1": 9.0, "2": 1.0}


def write(lab: RepositoryLab, *factors: int) -> None:
    for version, factor in enumerate(factors, 1):
        lab.write("topics", CONFIG, TIMES.format(factor=factor), str(version))


def counts_of(lab: RepositoryLab) -> TensorMirrorCounts:
    status = lab.service.versions_status("topics")
    assert status is not None
    assert status.mirror is not None
    return status.mirror


@in_loop
async def test_two_versions_divide_the_requests_and_explain_says_which(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {}) as lab:
        write(lab, 2, 3)
        await lab.repository.load("topics")
        lab.service.set_versions("topics", TensorVersionsConfig(NINE_TO_ONE))
        answers = Counter([(await lab.infer("topics", 1, request_id=f"r{n}"))[0][0] for n in range(100)])
        assert set(answers) == {2, 3}
        assert 80 <= answers[2] <= 97
        record = lab.service.history.get("r0")
        assert record is not None
        shown = infer_text(infer_explanation(record, 0.0))
        assert f"version {record.version}: split: {90 if record.version == '1' else 10} %" in shown
        assert await lab.infer("topics", 1, model_version="2") == [[3]]
        status = lab.service.versions_status("topics")
        assert status is not None
        assert [one.share for one in status.versions] == [9.0, 1.0]
        assert sum(one.num_succeeded for one in status.versions) == 101
        assert status.line.startswith("version 1: 90 %, ")


@in_loop
async def test_a_mirrored_version_gets_copies_whose_answers_are_compared(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {}) as lab:
        write(lab, 2, 3)
        await lab.repository.load("topics")
        mirror = TensorMirrorConfig("2")
        lab.service.set_versions("topics", TensorVersionsConfig(None, mirror))
        assert await lab.infer("topics", 1, request_id="a") == [[2]]  # and not by the highest version
        assert await lab.infer("topics", 0, request_id="b") == [[0]]  # which is the answer of both
        await until(lambda: counts_of(lab).num_compared == 2)
        assert counts_of(lab) == TensorMirrorCounts("2", 100.0, num_copied=2, num_compared=2, num_equal=1)
        await until(lambda: lab.num_held == 0)
        copied = lab.service.history.get("mirror-a")
        assert copied is not None
        assert (copied.version, copied.version_reason, copied.tenant) == ("2", "a copy of a", "")
        assert await lab.infer("topics", 1, model_version="1") == [[2]]  # names one: it is not copied
        assert counts_of(lab).num_copied == 2


@in_loop
async def test_clients_notice_nothing_of_copies_that_fail(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {}) as lab:
        lab.write("topics", CONFIG, TIMES.format(factor=2).replace("== 13", "== 14"), "1")
        lab.write("topics", CONFIG, TIMES.format(factor=2), "2")
        await lab.repository.load("topics")
        lab.service.set_versions("topics", TensorVersionsConfig({"1": 1.0}, TensorMirrorConfig("2")))
        assert await lab.infer("topics", 13) == [[26]]
        await until(lambda: counts_of(lab).num_failed == 1)
        assert counts_of(lab).num_compared == 0
        await until(lambda: lab.num_held == 0)


@in_loop
async def test_a_mirror_to_a_version_that_does_not_serve_copies_nothing(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {}) as lab:
        write(lab, 2)
        await lab.repository.load("topics")
        lab.service.set_versions("topics", TensorVersionsConfig(None, TensorMirrorConfig("7")))
        assert await lab.infer("topics", 1) == [[2]]
        assert counts_of(lab) == TensorMirrorCounts("7", 100.0)


@in_loop
async def test_counts_of_a_mirror_go_on_when_the_split_changes(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {}) as lab:
        write(lab, 2, 2)
        await lab.repository.load("topics")
        routes = TensorVersionsConfig({"1": 1.0}, TensorMirrorConfig("2"))
        lab.service.set_versions("topics", routes)
        await lab.infer("topics", 1)
        lab.service.set_versions("topics", routes.with_split({"1": 3.0}))
        await lab.infer("topics", 1)
        await until(lambda: counts_of(lab).num_equal == 2)
        lab.service.set_versions("topics", routes.rolled_back())
        status = lab.service.versions_status("topics")
        assert status is not None
        assert status.mirror is None
