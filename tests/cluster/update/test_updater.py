"""The shell around a rolling update: configurations from files, a router that comes and goes, names of releases."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.admin_app import build_app
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.admin_api.update_routes import UpdateAnswer, update_routes
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.overrides import Overrides
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.config.watch_config import WatchConfig
from slipstream.cluster.fleet.fleet_port import FleetError, FleetMember, FleetState
from slipstream.cluster.fleet.update_plan import UpdateEvent, UpdateOptions
from slipstream.cluster.repository.model_content import content_of
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.update import updater as module
from slipstream.cluster.update.folder_watch import FolderWatch
from slipstream.cluster.update.release import Release
from slipstream.cluster.update.updater import Updater
from slipstream.cluster.update.updaters import Updaters
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.protocol.messages import Role
from slipstream.router.status.version_status import VersionCounts, VersionStatus
from tests.support.cluster.fake_fleet import FakeFleets, FakeRouterView

TOKEN = "a-token-of-some-length"
DEMO = Path(__file__).parents[3] / "models" / "slipstream-demo"


class QuickFleet:
    """Groups are ready, and gone, at the next look."""

    def __init__(self, version: str, config: ClusterConfig) -> None:
        self.is_held = False
        self.versions = {version: config}
        self.members = {f"{r}-0": self.member(f"{r}-0", r, version, "ready") for r in ("prefill", "decode")}  # type: ignore[arg-type]
        self.number = 0
        self.refusal: FleetError | None = None

    @staticmethod
    def member(name: str, role: Role, version: str, state: str) -> FleetMember:
        return FleetMember(name, role, state, 0.0, version=version)  # type: ignore[arg-type]

    def state(self) -> FleetState:
        shown = tuple(self.members.values())
        self.members = {n: replace(m, state="ready") for n, m in self.members.items() if not m.is_leaving}
        stay = [m.role for m in shown if not m.is_leaving]
        return FleetState(shown, stay.count("prefill"), stay.count("decode"), None, self.is_held)

    async def add(self, role: Role, count: int = 1, version: str | None = None) -> list[str]:
        if self.refusal is not None:
            raise self.refusal
        assert version in self.versions
        self.number += 1
        name = f"{role}-{self.number}"
        self.members[name] = self.member(name, role, version, "starting")
        return [name]

    async def remove(self, name: str, *, migrate: bool = True) -> None:
        raise NotImplementedError

    async def retire(self, name: str) -> None:
        self.members[name] = replace(self.members[name], state="draining", is_leaving=True)

    async def switch_role(self, name: str, role: Role) -> None:
        raise NotImplementedError

    async def scale(self, role: Role, replicas: int) -> None:
        for _ in range(replicas - self.state().num(role)):
            await self.add(role, 1, next(reversed(self.versions)))

    def add_version(self, version: str, config: ClusterConfig, manifest: Manifest | None) -> None:
        self.versions.pop(version, None)
        self.versions[version] = config

    def forget_version(self, version: str) -> None:
        del self.versions[version]


class QuickRouter:
    """While it is down, every call fails as those into a dead process do."""

    def __init__(self, *names: str) -> None:
        self.split: dict[str, float] | None = None
        self.is_up = True
        self.num_refused = 0  # calls while it was down
        self.followed: list[ClusterConfig] = []
        self.manifests: tuple[Manifest, ...] = ()
        self.texts: dict[str, str] = {}
        self.own_text = ""

    def check(self) -> None:
        if not self.is_up:
            self.num_refused += 1
            raise ConnectionError("there is no router")

    async def set_split(self, split: dict[str, float] | None) -> None:
        self.check()
        self.split = split

    async def set_mirror(self, version: str, percent: float | None) -> None:
        self.check()
        self.mirror = {version: percent} if percent is not None else {}

    async def add_text(self, version: str, served: ServedModelConfig, manifest: Manifest) -> None:
        self.check()
        self.texts[version] = served.path

    async def adopt_text(self, version: str) -> None:
        self.own_text = self.texts.pop(version)

    async def remove_text(self, version: str) -> None:
        del self.texts[version]

    async def versions(self) -> tuple[VersionStatus, ...]:
        self.check()
        weights = self.split or {}
        return tuple(VersionStatus(name, weights[name], True, 1, 1, 0, VersionCounts()) for name in weights)

    async def follow(self, config: ClusterConfig) -> None:
        self.followed.append(config)

    def expect_files(self, manifests: Sequence[Manifest]) -> None:
        self.manifests = tuple(manifests)


class Lab:
    def __init__(self, folder: Path, overrides: Overrides) -> None:
        self.folder = folder
        shutil.copytree(DEMO, folder / "repo" / "1")
        shutil.copytree(DEMO, folder / "repo" / "2")
        self.first = self.config("first", "1")
        config = overrides.load(self.first)
        self.fleet, self.router = QuickFleet("1", config), QuickRouter()
        self.shown: list[tuple[UpdateEvent, Release, bool]] = []  # with whether the fleet was held
        self.num_decode_when_shown = 0  # the last time
        first = Release("1", config, str(self.first), content_of(config))
        self.updater = Updater(first, self.fleet, self.router, overrides.load, self.show)

    def show(self, event: UpdateEvent, release: Release) -> None:
        self.shown.append((event, release, self.fleet.is_held))
        self.num_decode_when_shown = sum(member.role == "decode" for member in self.fleet.members.values())

    def config(self, name: str, version: str, more: str = "") -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(f"model: {{path: repo, version: {version}}}\n{more}\n")
        return path

    async def until_over(self) -> None:
        async with asyncio.timeout(20):
            while self.updater.is_active:
                await asyncio.sleep(0.01)

    def phase(self) -> str:
        assert self.updater.status is not None
        return self.updater.status.phase


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    return Lab(tmp_path, Overrides())


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(bounded())


def test_an_update_and_the_way_back(lab: Lab) -> None:
    async def main() -> None:
        assert await lab.updater.begin(lab.config("second", "2"), UpdateOptions()) == ("model.path", "model.version")
        assert lab.fleet.is_held
        assert next(reversed(lab.fleet.versions)) == "1", "who adds a group meanwhile gets an old one"
        await lab.until_over()
        assert (lab.phase(), lab.router.split, lab.fleet.is_held) == ("done", None, False)
        assert {member.version for member in lab.fleet.members.values()} == {"2"}
        assert list(lab.fleet.versions) == ["2"]
        assert lab.router.followed[-1].model.path.endswith("/2")
        assert lab.updater.status is not None
        assert [event for event, _, _ in lab.shown] == list(lab.updater.status.events)
        *meanwhile, (_, release, is_held) = lab.shown
        assert {(release.version, is_held) for _, release, is_held in meanwhile} == {("1", True)}
        assert (release.version, is_held) == ("2", False)
        await lab.updater.roll_back()
        await lab.until_over()
        assert {member.version for member in lab.fleet.members.values()} == {"1"}
        assert list(lab.fleet.versions) == ["1"]

    run(main)


def test_an_update_is_told_of_before_whoever_asked_for_it_is_answered(lab: Lab) -> None:
    """If the driver ends then, the next one knows that the update was cut short."""

    async def main() -> None:
        await lab.updater.begin(lab.config("second", "2"), UpdateOptions())
        ((event, release, is_held),) = lab.shown
        assert (event.phase, release.version, is_held) == ("starting", "1", True)
        await lab.updater.close()

    run(main)


@pytest.mark.parametrize("first", ["sizes", "second"])
def test_two_updates_at_a_time_are_one_too_many(lab: Lab, first: str) -> None:
    """One of them is over at once, the other exchanges workers; whichever comes first is carried out."""
    files = {"sizes": lab.config("sizes", "1", "decode: {replicas: 2}"), "second": lab.config("second", "2")}

    async def main() -> None:
        asked = [files.pop(first), *files.values()]
        done, refused = await asyncio.gather(
            *(lab.updater.begin(path, UpdateOptions()) for path in asked), return_exceptions=True
        )
        assert isinstance(done, tuple)
        assert isinstance(refused, FleetError)
        assert (refused.kind, refused.reason) == ("conflict", "an update is under way")
        await lab.until_over()
        assert [*lab.fleet.versions] == ["1" if first == "sizes" else "2"]
        assert lab.fleet.state().num_decode == (2 if first == "sizes" else 1)

    run(main)


def test_a_configuration_that_cannot_be_read_is_in_nobodys_way(lab: Lab) -> None:
    async def main() -> None:
        with pytest.raises(FleetError, match="no such file"):
            await lab.updater.begin(lab.folder / "none.yaml", UpdateOptions())
        await lab.updater.begin(lab.config("second", "2"), UpdateOptions())
        await lab.until_over()
        assert lab.phase() == "done"

    run(main)


def test_a_second_release_under_the_same_version_has_a_name_of_its_own(lab: Lab) -> None:
    async def main() -> None:
        await lab.updater.begin(lab.config("larger", "1", "engine: {max_num_seqs: 7}"), UpdateOptions())
        await lab.until_over()
        assert {member.version for member in lab.fleet.members.values()} == {"1-2"}

    run(main)


def test_a_router_that_is_down_delays_the_update_and_nothing_else(lab: Lab) -> None:
    async def main() -> None:
        lab.router.is_up = False
        await lab.updater.begin(lab.config("second", "2"), UpdateOptions())
        while lab.router.num_refused < 3:  # `run` bounds the wait
            await asyncio.sleep(0.01)
        assert set(lab.fleet.members) == {"prefill-0", "decode-0"}
        lab.router.is_up = True
        await lab.until_over()
        assert lab.phase() == "done"

    run(main)


def test_a_fleet_that_refuses_a_group_turns_the_update_round(lab: Lab) -> None:
    async def main() -> None:
        lab.fleet.refusal = FleetError("unavailable", "role", "no more groups today")
        await lab.updater.begin(lab.config("second", "2"), UpdateOptions())
        await lab.until_over()
        assert lab.phase() == "rolled_back"
        assert lab.updater.status is not None
        assert lab.updater.status.reason == "no more groups today"
        assert list(lab.fleet.versions) == ["1"]

    run(main)


def test_sizes_and_levels_alone_exchange_nobody(lab: Lab) -> None:
    async def main() -> None:
        more = "decode: {replicas: 3}\nrouter: {dispatch: {policy: kv}}"
        changed = await lab.updater.begin(lab.config("sizes", "1", more), UpdateOptions())
        assert changed == ("decode.replicas", "router.dispatch.policy")
        assert not lab.updater.is_active
        assert sorted(lab.fleet.members) == ["decode-0", "decode-1", "decode-2", "prefill-0"]
        assert lab.router.followed[-1].router.dispatch.policy == "kv"
        ((event, release, is_held),) = lab.shown
        assert event.text.endswith("taken up without an exchange of workers: decode.replicas, router.dispatch.policy")
        assert (event.phase, release.version, release.config.decode.replicas, is_held) == ("done", "1", 3, False)
        assert lab.num_decode_when_shown == 3, "done was shown before it was"

    run(main)


@pytest.mark.parametrize("has_exchanged_before", [False, True])
def test_the_admin_api_shows_the_last_update_also_if_it_exchanged_nobody(lab: Lab, has_exchanged_before: bool) -> None:
    async def main() -> None:
        version = "2" if has_exchanged_before else "1"
        if has_exchanged_before:
            await lab.updater.begin(lab.config("second", version), UpdateOptions())
            await lab.until_over()
        assert (lab.updater.status is not None) == has_exchanged_before
        path = lab.config("sizes", version, "decode: {replicas: 3}")
        await lab.updater.begin(path, UpdateOptions())
        reply = UpdateAnswer.of(lab.updater)
        line = f"{path} taken up without an exchange of workers: decode.replicas"
        assert (reply.is_active, reply.phase, reply.line) == (False, "done", line)

    run(main)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("", "nothing differs from what runs"),
        ("name: other", "a new start is needed to change name"),
        ("engine: {page_tokens: 32}", "a new start is needed to change engine.page_tokens"),
        ("decode: {replicas: x}", "decode.replicas"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(lab: Lab, more: str, sentence: str) -> None:
    async def main() -> None:
        with pytest.raises(FleetError, match=sentence):
            await lab.updater.begin(lab.config("next", "1", more), UpdateOptions())
        assert lab.updater.status is None
        assert list(lab.fleet.versions) == ["1"]

    run(main)


def test_what_the_command_line_said_at_the_start_holds_for_later_files_too(tmp_path: Path) -> None:
    lab = Lab(tmp_path, Overrides(name="other", port=0))

    async def main() -> None:
        more = "router: {dispatch: {policy: kv}, http: {port: 8123}}"
        assert await lab.updater.begin(lab.config("next", "1", more), UpdateOptions()) == ("router.dispatch.policy",)
        assert lab.router.followed[-1].name == "other"
        assert lab.router.followed[-1].router.http.port == 0

    run(main)


@pytest.mark.parametrize(
    ("name", "content"),
    [("chat_template.jinja", "{{ messages }}"), ("generation_config.json", '{"temperature": 0.5}')],
)
def test_a_version_with_another_text_has_it_read_by_the_router_and_the_way_back_as_well(
    lab: Lab, name: str, content: str
) -> None:
    old, new = (lab.folder / "repo" / number for number in "12")
    (new / name).write_text(content)

    async def main() -> None:
        await lab.updater.begin(lab.config("second", "2"), UpdateOptions())
        assert lab.router.texts == {"2": str(new)}
        assert len(lab.router.manifests) == 1, "the next router reads the old text of the old files alone"
        await lab.until_over()
        assert (lab.phase(), lab.router.own_text, lab.router.texts) == ("done", str(new), {})
        await lab.updater.roll_back()
        assert lab.router.texts == {"1": str(old)}
        await lab.until_over()
        assert (lab.router.own_text, lab.router.texts) == (str(old), {})

    run(main)


def test_a_version_with_another_text_that_is_rolled_back_leaves_none(lab: Lab) -> None:
    (lab.folder / "repo" / "2" / "chat_template.jinja").write_text("{{ messages }}")
    lab.fleet.refusal = FleetError("unavailable", "role", "no more groups today")

    async def main() -> None:
        await lab.updater.begin(lab.config("second", "2"), UpdateOptions())
        await lab.until_over()
        assert (lab.phase(), lab.router.own_text, lab.router.texts) == ("rolled_back", "", {})

    run(main)


def test_a_version_with_another_text_is_not_mirrored_and_needs_a_router(lab: Lab) -> None:
    (lab.folder / "repo" / "2" / "chat_template.jinja").write_text("{{ messages }}")

    async def main() -> None:
        with pytest.raises(FleetError, match="another chat template than what runs, and copies are made of tokens"):
            await lab.updater.begin(lab.config("second", "2"), UpdateOptions(mirror_percent=5.0))
        lab.router.is_up = False
        with pytest.raises(FleetError, match="the router has to read another chat template, and does not answer"):
            await lab.updater.begin(lab.config("second", "2"), UpdateOptions())
        assert lab.updater.status is None

    run(main)


def test_a_template_that_was_overwritten_is_another_text(lab: Lab) -> None:
    (lab.folder / "repo" / "1" / "chat_template.jinja").write_text("{{ messages }}")

    async def main() -> None:
        await lab.updater.begin(lab.first, UpdateOptions())
        assert list(lab.router.texts) == ["1-2"]
        await lab.until_over()
        assert lab.phase() == "done"

    run(main)


def watch_of(lab: Lab) -> tuple[FolderWatch, list[str]]:
    said: list[str] = []
    return FolderWatch(lab.updater, WatchConfig(), {}, said.append), said


def test_a_new_highest_folder_is_updated_to_once_it_is_whole_and_has_settled(lab: Lab) -> None:
    async def main() -> None:
        watch, said = watch_of(lab)
        await lab.updater.begin(lab.config("second", "2"), UpdateOptions())
        await lab.until_over()
        third = lab.folder / "repo" / "3"
        shutil.copytree(DEMO, third)
        weights = third / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:1000])
        for _ in range(3):
            await watch.look()
        assert not lab.updater.is_active
        (sentence,) = said
        assert sentence.startswith(f"watch: {third} is not taken so far: ")
        weights.write_bytes(whole)
        await watch.look()
        assert not lab.updater.is_active, "it has just changed"
        await watch.look()
        assert lab.updater.is_active
        await lab.until_over()
        assert {member.version for member in lab.fleet.members.values()} == {"3"}
        assert [event.by.name for event, _, _ in lab.shown if event.text.startswith("update from")] == [
            "operator",
            "watch",
        ]

    run(main)


def test_a_watched_version_that_was_rolled_back_is_not_tried_again_until_it_changes(lab: Lab) -> None:
    async def main() -> None:
        watch, _ = watch_of(lab)
        lab.fleet.refusal = FleetError("unavailable", "role", "no more groups today")
        for _ in range(2):
            await watch.look()
        await lab.until_over()
        assert lab.phase() == "rolled_back"
        lab.fleet.refusal = None
        for _ in range(3):
            await watch.look()
        assert not lab.updater.is_active
        (lab.folder / "repo" / "2" / "note.txt").write_text("fixed")
        for _ in range(2):
            await watch.look()
        await lab.until_over()
        assert lab.phase() == "done"

    run(main)


def test_a_watched_version_that_is_refused_is_reported_once(lab: Lab) -> None:
    async def main() -> None:
        (lab.folder / "repo" / "2" / "generation_config.json").write_text('{"temperature": -1}')
        watch, said = watch_of(lab)
        for _ in range(4):
            await watch.look()
        assert len(said) == 1
        assert "repo/2 is not taken: model.path: " in said[0]

    run(main)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("{path: repo, version: 1, watch: true}", "model.watch.*must be false where a version is chosen"),
        ("{path: repo/1, watch: true}", "model.watch.*needs a numbered folder for each version"),
    ],
)
def test_a_model_that_has_no_folders_to_watch_is_refused(lab: Lab, model: str, sentence: str) -> None:
    path = lab.folder / "watched.yaml"
    path.write_text(f"model: {model}\n")
    with pytest.raises(ConfigError, match=sentence):
        Overrides().load(path)


def overwrite_weights(folder: Path) -> None:
    """One bit in the middle, with size and mtime as before."""
    path = folder / "model.safetensors"
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(stat.st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_files_that_were_overwritten_are_another_version_to_which_there_is_no_way_back(lab: Lab) -> None:
    async def main() -> None:
        old = lab.router.manifests
        overwrite_weights(lab.folder / "repo" / "1")
        assert await lab.updater.begin(lab.first, UpdateOptions()) == ("model",)
        assert len(lab.router.manifests) == 2, "a router that is started meanwhile may read the files of either"
        await lab.until_over()
        assert {member.version for member in lab.fleet.members.values()} == {"1-2"}
        (manifest,) = lab.router.manifests
        assert manifest not in old
        with pytest.raises(FleetError, match=r"1 cannot be loaded any more: .*repo/1/model\.safetensors has other"):
            await lab.updater.roll_back()
        assert not lab.updater.is_active

    run(main)


def test_the_way_back_is_barred_by_whatever_is_missing_and_open_once_it_is_there(lab: Lab) -> None:
    async def main() -> None:
        await lab.updater.begin(lab.config("second", "2"), UpdateOptions())
        await lab.until_over()
        away = lab.folder / "away"
        (lab.folder / "repo" / "1").rename(away)
        with pytest.raises(FleetError, match=r"1 cannot be loaded any more: .*repo/1 is gone"):
            await lab.updater.roll_back()
        away.rename(lab.folder / "repo" / "1")
        await lab.updater.roll_back()
        await lab.until_over()
        assert {member.version for member in lab.fleet.members.values()} == {"1"}

    run(main)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tokenizer_config.json", "{}", "another tokenizer_config.json than what runs"),
        ("chat_template.jinja", "{{ messages }}", "another chat_template.jinja than what runs"),
        ("config.json", None, "embed_tokens.weight has shape .*, config.json asks for"),
    ],
)
def test_a_tokenizer_that_was_overwritten_is_another_one_and_weights_have_to_match(
    lab: Lab, name: str, content: str | None, sentence: str
) -> None:
    path = lab.folder / "repo" / "1" / name
    path.write_text(content or path.read_text().replace('"vocab_size": ', '"vocab_size": 1'))

    async def main() -> None:
        with pytest.raises(FleetError, match=sentence):
            await lab.updater.begin(lab.first, UpdateOptions(mirror_percent=5.0))

    run(main)


def test_the_admin_api_tells_what_has_become_of_the_update_of_the_driver_before(lab: Lab) -> None:
    parts = DriverParts(
        FakeFleets({"m": lab.fleet}), ClusterState("c", 1, 1.0, "c.yaml", "m"), FakeRouterView(), AdminTokens(TOKEN)
    )
    lab.updater.last_event = UpdateEvent(0.0, "cut_short", "cut short by the end of the driver")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(build_app(parts, [update_routes(Updaters({"m": lab.updater}))]), headers=headers) as client:
        reply = client.get("/v1/update").json()
    assert (reply["is_active"], reply["phase"]) == (False, "cut_short")
    assert reply["line"] == "cut short by the end of the driver"


def test_the_admin_api_begins_shows_splits_and_refuses(lab: Lab) -> None:
    state = ClusterState("c", 1, 1.0, "c.yaml", "m")
    parts = DriverParts(FakeFleets({"m": lab.fleet}), state, FakeRouterView(), AdminTokens(TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(build_app(parts, [update_routes(Updaters({"m": lab.updater}))]), headers=headers) as client:
        assert client.get("/v1/update").json()["line"] == "no update yet"
        assert client.post("/v1/update/rollback").status_code == 409
        assert client.post("/v1/update/split", json={"weights": {"1": 1}}).status_code == 409
        bad = client.post("/v1/update", json={"config": str(lab.first), "surge": -1})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "surge")
        question = {"config": str(lab.config("second", "2")), "split": 10.0}
        begun = client.post("/v1/update", json=question)
        assert begun.status_code == 202
        assert begun.json()["changed"] == ["model.path", "model.version"]
        while client.get("/v1/update").json()["phase"] != "canary":
            pass
        assert client.get("/v1/update").json()["split"] == {"1": 90, "2": 10}
        assert client.post("/v1/update", json=question).status_code == 409
        wrong = client.post("/v1/update/split", json={"weights": {"3": 1.0}})
        assert wrong.json()["error"]["message"] == "split names '3'; this update has '1' and '2'"
        json = {"Content-Type": "application/json"}
        for weights in ('{"2": -5, "1": 50}', '{"2": NaN, "1": 50}', '{"2": 1e400}', '{"1": 0, "2": 0}'):
            refused = client.post("/v1/update/split", content=f'{{"weights": {weights}}}', headers=json)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "split")
            assert client.get("/v1/update").json()["phase"] == "canary"
        reply = client.post("/v1/update/split", json={"weights": {"2": 100.0}}).json()
        assert reply["phase"] == "rolling"
        while client.get("/v1/update").json()["is_active"]:
            pass
        assert client.get("/v1/update").json()["phase"] == "done"
        assert "/v1/update/split" in client.get("/openapi.json").json()["paths"]
