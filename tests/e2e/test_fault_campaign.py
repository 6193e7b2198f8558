"""A short fault campaign: two prefill and two decode workers under load that die, freeze and are cut off.

`scripts/faults/fault_campaign.py` runs it for as long as one likes, with other faults; docs/results/faults.md has what
came of that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults.cluster_campaign import Plan, run_cluster

FAULTS = ("kill", "freeze", "freeze", "reset", "cut-pages", "router")
# With this seed a decode worker is killed first, so that requests are hit however few faults follow on a slow machine.
# Where there is time for nine, each kind strikes at least once; there are fewer where connections cannot be reset.
PLAN = Plan(seed=2191, seconds=10.0, faults=FAULTS, pause_s=(0.3, 1.5), num_jobs=20, num_clients=8)


@pytest.mark.timeout(300)
def test_under_faults_every_request_ends_once_with_the_tokens_of_an_undisturbed_run(tmp_path: Path) -> None:
    outcome = run_cluster(PLAN, tmp_path)
    story = "\n".join([*(f"{at:.1f} s {what}" for at, what in outcome.struck), *outcome.lines()])
    print(story)
    assert not outcome.wrong, story
    assert outcome.account.ends["finished"] > 20, story
    assert any(outcome.account.finished[kind] for kind in ("json, seeded", "regex, seeded", "choice, seeded")), story
    assert outcome.retries.get("worker_lost", 0) > 0, story  # the faults have hit somebody
