"""Rates and concurrency of keys, what is reported about them, and the usage that is kept."""

import errno
import json
import os
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.router.access import usage
from slipstream.router.access.api_key import ApiKey, Rates
from slipstream.router.access.caller import ANYBODY, Caller
from slipstream.router.access.limits import KeyLimits, Quota, RateLimited, TokenBucket, check_all, duration, headers_of
from slipstream.router.access.usage import COMPACT_BYTES, Account, UsageCounts, UsageFile, UsageTotals
from slipstream.router.http.http_error import HttpError

KEY = ApiKey("a", b"", "t", requests_per_minute=60, tokens_per_minute=600, max_concurrent=4)


class WholeQuota(Quota):
    """That of a key, for all models."""

    def admit(self, num_tokens, num_sequences, now):
        self.check(num_tokens, num_sequences, now)
        self.take(num_tokens, num_sequences, now)


def limits_of(key=KEY, now=0.0):
    quota = WholeQuota()
    quota.follow(key.rates, now)
    return quota


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 500)), max_size=60), st.sampled_from([1.0, 60.0, 1000.0]))
def test_a_bucket_gives_a_minutes_worth_at_once_and_its_rate_ever_after(steps, per_minute):
    bucket, now, taken = TokenBucket(per_minute, 0.0), 0.0, 0.0
    for pause_s, amount in steps:
        now += pause_s
        wait_s = bucket.wait_s(amount, now)
        assert wait_s >= 0
        now += wait_s  # the time that it returned is enough, and
        if wait_s > 1e-3:
            assert bucket.wait_s(amount, now - 1e-3) > 0  # no more than it takes
        assert bucket.wait_s(amount, now) == pytest.approx(0, abs=1e-6)
        amount = min(amount, per_minute)
        bucket.take(amount, now)
        taken += amount
        assert taken <= per_minute * (1 + now / 60) + 1e-3


def test_requests_over_the_rate_are_refused_with_the_time_till_the_next():
    key = replace(KEY, tokens_per_minute=None, max_concurrent=None)
    limits = limits_of(key)
    for _ in range(60):
        limits.admit(1, 1, 0.0)
    with pytest.raises(RateLimited, match="60 requests a minute") as limited:
        limits.admit(1, 1, 0.5)
    assert limited.value.limit == "requests"
    assert limited.value.retry_after_s == pytest.approx(0.5)
    limits.admit(1, 1, 1.0)


def test_what_another_router_has_let_in_is_never_refused_and_owed():
    limits = limits_of()
    for _ in range(3):
        limits.take(400, 2, 0.0)
    with pytest.raises(RateLimited, match="6 of 4 sequences"):
        limits.admit(1, 1, 0.0)
    for _ in range(3):
        limits.settle(400, 400, 2, 0.0)
    with pytest.raises(RateLimited) as limited:
        limits.admit(60, 1, 0.0)
    assert limited.value.retry_after_s == pytest.approx(66.0)  # 600 tokens too many, and the 60


def test_tokens_are_reserved_and_settled():
    limits = limits_of(replace(KEY, max_concurrent=None))
    limits.admit(500, 1, 0.0)
    with pytest.raises(RateLimited, match="up to 200") as limited:
        limits.admit(200, 1, 0.0)
    assert (limited.value.limit, limited.value.retry_after_s) == ("tokens", pytest.approx(10.0))
    limits.settle(500, 100, 1, 0.0)
    limits.admit(500, 1, 0.0)
    limits.settle(500, 1100, 1, 0.0)  # more than it had reserved: a debt
    with pytest.raises(RateLimited) as limited:
        limits.admit(1, 1, 0.0)
    assert limited.value.retry_after_s == pytest.approx((600 + 1) / 10)


def test_what_is_refused_takes_nothing():
    limits = limits_of()
    for _ in range(100):
        with pytest.raises(RateLimited):
            limits.admit(10, 5, 0.0)
    limits.admit(600, 4, 0.0)
    assert limits.num_running == 4


def test_a_request_larger_than_the_limit_is_let_in_when_nothing_has_been_used():
    limits = limits_of()
    limits.admit(10_000, 1, 0.0)
    with pytest.raises(RateLimited) as limited:
        limits.admit(10_000, 1, 0.0)
    assert limited.value.retry_after_s == pytest.approx(10_000 / 10)


def test_concurrency_counts_sequences_till_they_are_settled():
    limits = limits_of()
    limits.admit(1, 3, 0.0)
    with pytest.raises(RateLimited, match="3 of 4 sequences") as limited:
        limits.admit(1, 2, 0.0)
    assert limited.value.limit == "concurrent"
    limits.settle(1, 1, 3, 0.0)
    limits.admit(1, 4, 0.0)


def test_a_changed_limit_keeps_what_was_used():
    limits = limits_of()
    limits.admit(600, 1, 0.0)
    limits.follow(replace(KEY, tokens_per_minute=1200).rates, 0.0)
    assert limits.tokens.level(0.0) == 600
    limits.follow(replace(KEY, tokens_per_minute=None).rates, 0.0)
    assert limits.tokens is None


def key_limits(key, now=0.0):
    limits = KeyLimits()
    limits.follow(key, now)
    return limits


def test_a_model_with_limits_of_its_own_has_those_beside_the_ones_of_the_key():
    key = replace(KEY, limits={"big": Rates(tokens_per_minute=100), "free": Rates(requests_per_minute=1)})
    limits = key_limits(key)
    whole, big = limits.of("big")
    assert limits.of("other") == (limits.whole,) == (whole,)
    big.take(90, 1, 0.0)
    with pytest.raises(RateLimited, match="this key with the model 'big' may use 100 tokens a minute"):
        check_all(limits.of("big"), 20, 1, 0.0)
    check_all(limits.of("other"), 20, 1, 0.0)
    whole.take(590, 1, 0.0)
    with pytest.raises(RateLimited, match="this key may use 600 tokens a minute"):
        check_all(limits.of("free"), 20, 1, 0.0)


def test_a_limit_of_a_model_that_comes_or_goes_while_requests_run_counts_each_of_them_once():
    limits = key_limits(KEY)
    before = limits.of("big")
    for quota in before:
        quota.take(10, 1, 0.0)
    limits.follow(replace(KEY, limits={"big": Rates(max_concurrent=2)}), 0.0)
    now = limits.of("big")
    for quota in now:
        quota.take(10, 2, 0.0)
    for quota in before:  # which the new limit has not counted
        quota.settle(10, 10, 1, 0.0)
    assert [quota.num_running for quota in now] == [2, 2]
    limits.follow(KEY, 0.0)
    for quota in now:
        quota.settle(10, 10, 2, 0.0)
    assert limits.num_running == 0
    assert limits.of("big") == (limits.whole,)


def test_headers_are_of_the_limit_of_which_least_is_left():
    limits = key_limits(replace(KEY, limits={"big": Rates(requests_per_minute=10, tokens_per_minute=6000)}))
    limits.whole.take(400, 1, 0.0)
    assert headers_of(limits.of("big"), 0.0).splitlines()[::3] == [
        "x-ratelimit-limit-requests: 10",
        "x-ratelimit-limit-tokens: 600",
    ]


def test_headers_are_those_of_openai():
    limits = limits_of()
    limits.admit(300, 1, 0.0)
    assert headers_of((limits,), 0.0).splitlines() == [
        "x-ratelimit-limit-requests: 60",
        "x-ratelimit-remaining-requests: 59",
        "x-ratelimit-reset-requests: 1s",
        "x-ratelimit-limit-tokens: 600",
        "x-ratelimit-remaining-tokens: 300",
        "x-ratelimit-reset-tokens: 30s",
    ]
    assert [duration(s) for s in (0.0, 0.02, 1.5, 59, 360)] == ["0ms", "20ms", "1.5s", "59s", "6m0s"]
    assert headers_of((limits_of(ApiKey("b", b"", "t")),), 0.0) == ""


def test_salts_of_different_tenants_never_meet_whatever_they_contain():
    salts = {
        Caller(ApiKey("k", b"", tenant, shared_cache=shared)).own(salt)
        for tenant in ("a", "ab", "a:b", "1", "")
        for shared in (False, True)
        for salt in ("", "b", ":b", "b:", "tenant:1:a:", "shared:b")
    }
    # Each tenant's are its own; those that share have one set between them.
    assert len(salts) == 5 * 6 + 6
    assert Caller(ApiKey("k", b"", "x", shared_cache=True)).own("") == ""
    assert ANYBODY.own("salt") == "salt"


def test_a_caller_may_see_its_own_tenant_and_an_admin_all():
    assert ANYBODY.may_see("anybody")
    assert Caller(KEY).may_see("t")
    assert not Caller(KEY).may_see("other")
    assert Caller(replace(KEY, admin=True)).may_see("other")


def test_models_and_priorities_that_a_key_does_not_allow_are_403():
    caller = Caller(replace(KEY, models=frozenset({"m"}), max_priority=-1))
    caller.check("m", -1)
    for model, priority, param in [("x", 0, "model"), ("m", -2, "priority")]:
        with pytest.raises(HttpError) as refused:
            caller.check(model, priority)
        assert (refused.value.status, refused.value.param) == (403, param)
    ANYBODY.check("x", -100)


ACCOUNT = Account("k", "t", "m")


def test_usage_survives_a_restart_and_torn_lines(tmp_path, caplog):
    path = tmp_path / "usage.jsonl"
    file = UsageFile(path)
    assert file.load() == {}
    file.append({ACCOUNT: UsageCounts(1, 0, 10, 2, 5)})
    file.append({ACCOUNT: UsageCounts(2, 1, 20, 0, 7), Account("k2", "t", "m"): UsageCounts(1)})
    whole = {ACCOUNT: UsageCounts(3, 1, 30, 2, 12), Account("k2", "t", "m"): UsageCounts(1)}
    assert UsageFile(path).load() == whole
    data = path.read_bytes()
    path.write_bytes(data + b'{"key":"k","tenant":"t","mo')  # the crash
    again = UsageFile(path)
    assert again.load() == whole
    assert "not a line of usage" in caplog.text
    again.append({ACCOUNT: UsageCounts(1)})
    assert UsageFile(path).load()[ACCOUNT] == UsageCounts(4, 1, 30, 2, 12)


def test_what_a_full_disk_took_a_part_of_counts_once_when_it_is_saved_again(tmp_path, monkeypatch):
    path, second = tmp_path / "usage.jsonl", Account("k2", "t", "m")
    file, used = UsageFile(path), {ACCOUNT: UsageCounts(1), second: UsageCounts(2)}
    file.append({ACCOUNT: UsageCounts(5)})
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:-10]))  # the first line is whole
        with pytest.raises(OSError, match="only a part"):
            file.append(used)
    assert UsageFile(path).load() == {ACCOUNT: UsageCounts(5)}
    file.append(used)
    assert UsageFile(path).load() == {ACCOUNT: UsageCounts(6), second: UsageCounts(2)}


@pytest.mark.parametrize(
    "line", [b"[]", b"3", b'{"key":"k"}', b'{"key":"k","tenant":"t","model":"m","num_requests":"9"}']
)
def test_lines_that_are_no_usage_are_left_out(tmp_path, line):
    path = tmp_path / "usage.jsonl"
    UsageFile(path).append({ACCOUNT: UsageCounts(1)})
    path.write_bytes(line + b"\n" + path.read_bytes())
    assert UsageFile(path).load() == {ACCOUNT: UsageCounts(1)}


def test_a_file_that_has_grown_is_written_anew_with_the_sums(tmp_path):
    path = tmp_path / "usage.jsonl"
    UsageFile(path).append({ACCOUNT: UsageCounts(1, 0, 1, 0, 1)})
    line = path.read_bytes()
    count = COMPACT_BYTES // len(line) + 2
    path.write_bytes(line * count)
    assert UsageFile(path).load() == {ACCOUNT: UsageCounts(count, 0, count, 0, count)}
    assert json.loads(path.read_bytes())["num_requests"] == count
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_grows_is_compacted_while_it_is_in_use(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(usage, "COMPACT_BYTES", 1000)
    path = tmp_path / "usage.jsonl"
    file = UsageFile(path)
    file.load()
    for count in range(1, 200):
        file.append({ACCOUNT: UsageCounts(1), Account("k2", "t", "m"): UsageCounts(2)}, count)
        assert path.stat().st_size < 1500
    again = UsageFile(path)
    assert again.load() == {ACCOUNT: UsageCounts(199), Account("k2", "t", "m"): UsageCounts(398)}
    assert set(again.saved.values()) == {199}
    assert path.stat().st_mode & 0o777 == 0o600
    many = {Account(f"k{number}", "t", "m"): UsageCounts(1) for number in range(20)}
    sizes = []
    for count in range(200, 260):  # one line for each is over the limit
        file.append(many, count)
        sizes.append(path.stat().st_size)
    assert sum(after < before for before, after in pairwise(sizes)) < 40
    with monkeypatch.context() as broken:
        broken.setattr(UsageFile, "_compact", failing_to_compact)
        for count in range(260, 270):
            file.append(many, count)  # what was appended is saved, and must not be reported as unsaved
    assert 0 < caplog.text.count("cannot be compacted: ") < 5  # not with every line
    assert UsageFile(path).load()[Account("k7", "t", "m")] == UsageCounts(70)


def failing_to_compact(file: UsageFile, sums: object) -> None:
    raise OSError(errno.ENOSPC, "no room")


def test_what_could_not_be_saved_goes_with_the_next(tmp_path):
    totals = UsageTotals()
    totals.restore([(ACCOUNT, UsageCounts(5))])
    totals.add(ACCOUNT, UsageCounts(1, 0, 3))
    unsaved = totals.unsaved()
    assert unsaved == {ACCOUNT: UsageCounts(1, 0, 3)}
    totals.add(ACCOUNT, UsageCounts(1))  # while it is being saved
    totals.note_saved(unsaved)
    assert totals.unsaved() == {ACCOUNT: UsageCounts(1)}
    totals.note_saved(totals.unsaved())
    assert totals.unsaved() == {}
    assert dict(totals) == {ACCOUNT: UsageCounts(7, 0, 3)}
    with pytest.raises(OSError, match="No such file"):
        UsageFile(tmp_path / "no" / "folder").load()
