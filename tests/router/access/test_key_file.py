"""The file of API keys: read strictly, edited without harm to what people wrote in it."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.access.api_key import SECRET_PREFIX, Rates, digest_of, new_secret
from slipstream.router.access.entry_list import KeyFileError, edit_file
from slipstream.router.access.key_file import add_key, parse_keys, read_keys, remove_key
from slipstream.router.access.keys_command import keys_command

HASH = "ab" * 32
OTHER = "cd" * 32


def test_a_key_has_what_the_file_says_and_defaults_for_the_rest():
    full, plain = parse_keys(f"""
keys:
  - name: alice laptop
    sha256: {HASH}
    tenant: research
    weight: 2
    requests_per_minute: 60
    tokens_per_minute: 100000
    max_concurrent: 16
    max_priority: -2
    models: [llama, qwen]
    expires: 2027-01-01
    admin: true
    shared_cache: true
    limits:
      llama: {{tokens_per_minute: 5000, max_concurrent: 2}}
      org/qwen@1: {{requests_per_minute: 7}}
  - name: bob
    sha256: "{OTHER}"
""")
    assert (full.name, full.tenant, full.weight, full.digest) == ("alice laptop", "research", 2.0, bytes.fromhex(HASH))
    assert (full.requests_per_minute, full.tokens_per_minute, full.max_concurrent) == (60, 1e5, 16)
    assert (full.max_priority, full.models, full.admin) == (-2, frozenset({"llama", "qwen"}), True)
    assert full.expires_s == 1798761600.0
    assert full.shared_cache
    assert full.limits == {
        "llama": Rates(tokens_per_minute=5000, max_concurrent=2),
        "org/qwen@1": Rates(requests_per_minute=7),
    }
    assert plain.limits == {}
    assert (plain.tenant, plain.weight, plain.max_priority, plain.models) == ("bob", 1.0, 0, None)
    assert (plain.requests_per_minute, plain.tokens_per_minute, plain.max_concurrent) == (None, None, None)
    assert (plain.admin, plain.shared_cache, plain.expires_s) == (False, False, None)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ("", "key 'a': sha256: must be 64 hexadecimal digits"),
        (f"sha256: {HASH.upper()}", "key 'a': sha256: must be"),
        (f"sha256: {HASH}, wieght: 2", "key 'a': wieght: unknown; known here: name, sha256"),
        (f"sha256: {HASH}, weight: 0", "key 'a': weight: must be a number from 0.001"),
        (f"sha256: {HASH}, weight: .nan", "key 'a': weight: must be a number"),
        (f"sha256: {HASH}, weight: true", "key 'a': weight: must be a number"),
        (f"sha256: {HASH}, tokens_per_minute: many", "key 'a': tokens_per_minute: must be a number"),
        (f"sha256: {HASH}, max_concurrent: 0", "key 'a': max_concurrent: must be a whole number of at least 1"),
        (f"sha256: {HASH}, max_concurrent: 1.5", "key 'a': max_concurrent: must be a whole number"),
        (f"sha256: {HASH}, models: llama", "key 'a': models: must be a list"),
        (f"sha256: {HASH}, models: []", "key 'a': models: must be a list"),
        (f"sha256: {HASH}, limits: [m]", "key 'a': limits: must be a mapping of models"),
        (f"sha256: {HASH}, limits: {{m: 5}}", "key 'a': limits: m: must have some of requests_per_minute"),
        (f"sha256: {HASH}, limits: {{m: {{weight: 2}}}}", "key 'a': limits: m: must have some of"),
        (f"sha256: {HASH}, limits: {{m: {{max_concurrent: 0}}}}", "key 'a': limits: m: max_concurrent: must be"),
        (f"sha256: {HASH}, admin: 1", "key 'a': admin: must be true or false"),
        (f"sha256: {HASH}, expires: soon", "key 'a': expires: must be a date"),
        (f"sha256: {HASH}, tenant: 'a\\nb'", "key 'a': tenant: must be"),
        (f"sha256: {HASH}, tenant: '(others)'", "key 'a': tenant: must be"),
    ],
)
def test_a_wrong_field_is_named_with_its_key(fields, complaint):
    with pytest.raises(KeyFileError) as wrong:
        parse_keys("keys: [{name: a, " + fields + "}]")
    assert str(wrong.value).startswith(complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("keys: {", "not valid YAML"),
        ("", "must be a mapping with the one entry"),
        ("kyes: []", "must be a mapping with the one entry"),
        ("keys: 3", "must be a list"),
        ("keys: [a]", r"keys\[0\]: must be a mapping"),
        (f"keys: [{{sha256: {HASH}}}]", r"keys\[0\]: name: must be"),
        (f"keys: [{{name: a, sha256: {HASH}}}, {{name: a, sha256: {OTHER}}}]", "the name 'a' is given twice"),
        (
            f"keys: [{{name: a, sha256: {HASH}}}, {{name: b, sha256: {HASH}}}]",
            "key 'b': sha256: the same as of key 'a'",
        ),
        (
            f"keys: [{{name: a, sha256: {HASH}, tenant: t}}, {{name: b, sha256: {OTHER}, tenant: t, weight: 2}}]",
            "key 'b': weight: 2, but key 'a' of the same tenant has 1",
        ),
    ],
)
def test_a_wrong_file_is_refused_as_a_whole(text, complaint):
    with pytest.raises(KeyFileError, match=complaint):
        parse_keys(text)


def test_what_is_no_file_or_no_text_is_said_with_its_name(tmp_path):
    with pytest.raises(KeyFileError, match=r"none\.yaml: No such file"):
        read_keys(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KeyFileError, match="binary: not UTF-8"):
        read_keys(tmp_path / "binary")


def test_secrets_are_long_random_and_recognised_by_their_hash_alone():
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(secret.startswith(SECRET_PREFIX) and len(secret) == len(SECRET_PREFIX) + 43 for secret in secrets)
    assert digest_of(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


COMMENTED = f"""# ours
keys:
  # the first
  - name: a
    sha256: {HASH}  # of a
    models:
      - m

  # the second
  - {{name: b, sha256: {OTHER}}}
# the end
"""


def test_editing_keeps_what_people_wrote():
    longer = add_key(COMMENTED, {"name": "c", "sha256": "ef" * 32})
    assert longer.startswith(COMMENTED[: COMMENTED.index("# the end")])
    assert longer.endswith("# the end\n")
    assert [key.name for key in parse_keys(longer)] == ["a", "b", "c"]
    assert remove_key(longer, "c") == COMMENTED
    without_a = remove_key(COMMENTED, "a")
    assert [key.name for key in parse_keys(without_a)] == ["b"]
    assert "# the second" in without_a
    assert "# of a" not in without_a
    with pytest.raises(KeyFileError, match="no key named 'x'"):
        remove_key(COMMENTED, "x")
    with pytest.raises(KeyFileError, match="given twice"):
        add_key(COMMENTED, {"name": "a", "sha256": "ef" * 32})
    with pytest.raises(KeyFileError, match="in one line with brackets"):
        add_key(f"keys: [{{name: b, sha256: {OTHER}}}]", {"name": "a", "sha256": HASH})


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=14),
    st.sampled_from(["", "keys:\n", "keys: []\n", "# note\nkeys: []", "keys: # none\n\n\n"]),
)
def test_any_order_of_adding_and_removing_leaves_the_right_keys(steps, text):
    names: list[str] = []
    for adds, number in steps:
        name = f"k{number}"
        entry = {"name": name, "sha256": f"{number:064x}", "models": ["x", "y"], "weight": 1.5}
        if adds and name not in names:
            text = add_key(text, entry)
            names.append(name)
        elif not adds and name in names:
            text = remove_key(text, name)
            names.remove(name)
        assert [key.name for key in parse_keys(text or "keys: []")] == names


def test_the_command_adds_lists_and_removes(tmp_path: Path):
    file, runner = tmp_path / "keys.yaml", CliRunner()

    def call(*arguments: str) -> tuple[int, str, str]:
        result = runner.invoke(keys_command, list(arguments))
        return result.exit_code, result.stdout, result.stderr

    code, secret, note = call(
        *("add", str(file), "alice", "--tenant", "research", "--tokens-per-minute", "1000", "--model", "m", "--admin"),
        *("--expires", "2020-01-01", "--limit", "m", "tokens_per_minute", "500", "--limit", "m", "max_concurrent", "2"),
    )
    assert code == 0, note
    [key] = read_keys(file)
    assert key.digest == digest_of(secret.strip().encode())
    assert (key.tenant, key.tokens_per_minute, key.models, key.admin) == ("research", 1000, frozenset({"m"}), True)
    assert key.limits == {"m": Rates(tokens_per_minute=500, max_concurrent=2)}
    assert secret.strip() not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert call("add", str(file), "bob")[0] == 0
    code, table, _ = call("list", str(file))
    assert code == 0
    assert [line.split()[0] for line in table.splitlines()] == ["NAME", "alice", "bob"]
    assert "admin, expired 2020-01-01 00:00 UTC, m: 500 tokens/min 2 concurrent" in table
    code, _, error = call("add", str(file), "bob")
    assert code == 2
    assert "the name 'bob' is given twice" in error
    for option in ("--requests-per-minute", "--tokens-per-minute", "--max-concurrent", "--weight"):
        code, _, error = call("add", str(file), "none", option, "0")
        assert code == 2
        assert option.removeprefix("--").replace("-", "_") in error
    code, _, error = call("add", str(file), "bad", "--weight", "-1")
    assert code == 2
    assert "weight" in error
    assert call("remove", str(file), "alice")[0] == 0
    assert [key.name for key in read_keys(file)] == ["bob"]
    assert call("remove", str(file), "alice")[0] == 2
    assert call("list", str(tmp_path / "none"))[0] == 2


def test_whoever_edits_the_file_at_the_same_time_loses_nothing(tmp_path: Path):
    file = tmp_path / "keys.yaml"
    edit_file(file, lambda text: add_key(text or "", {"name": "first", "sha256": HASH}))
    is_reading, may_go_on = threading.Event(), threading.Event()

    def slowly(text: str | None) -> str:
        is_reading.set()
        may_go_on.wait()
        return add_key(text or "", {"name": "slow", "sha256": OTHER})

    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(edit_file, file, slowly)
        is_reading.wait()
        removed = pool.submit(edit_file, file, lambda text: remove_key(text or "", "first"))
        assert not wait([removed], timeout=0.05).done
        may_go_on.set()
        slow.result()
        removed.result()
    assert [key.name for key in read_keys(file)] == ["slow"]


def test_an_edited_file_keeps_its_mode_its_owner_and_the_link_to_it(tmp_path: Path):
    file, link = tmp_path / "real" / "keys.yaml", tmp_path / "keys.yaml"
    file.parent.mkdir()
    file.write_text("keys: []")
    file.chmod(0o640)
    if os.getuid() == 0:
        os.chown(file, 12, 34)
    before = file.stat()
    link.symlink_to(file)
    assert CliRunner().invoke(keys_command, ["add", str(link), "alice"]).exit_code == 0
    assert link.is_symlink()
    assert [key.name for key in read_keys(file)] == ["alice"]
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert list(file.parent.iterdir()) == [file]
