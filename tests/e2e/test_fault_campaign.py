"""A minute of the fault campaign: two prefill and two decode workers under load that die, freeze and are cut off.

`scripts/fault_campaign.py` runs it for as long as one likes, with other faults; docs/results/faults.md has what came of
that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cluster_campaign import Plan, run_cluster

PLAN = Plan(seed=4, seconds=35.0, faults=("kill", "freeze", "freeze", "reset", "cut-pages"), num_jobs=25, num_clients=8)


@pytest.mark.timeout(300)
def test_under_faults_every_request_ends_once_with_the_tokens_of_an_undisturbed_run(tmp_path: Path) -> None:
    outcome = run_cluster(PLAN, tmp_path)
    story = "\n".join([*(f"{at:.1f} s {what}" for at, what in outcome.struck), *outcome.lines()])
    print(story)
    assert not outcome.wrong, story
    assert outcome.account.ends["finished"] > 100, story
    assert any(outcome.account.finished[kind] for kind in ("json, seeded", "regex, seeded", "choice, seeded")), story
    assert outcome.retries.get("worker_lost", 0) > 0, story  # the faults have hit somebody
