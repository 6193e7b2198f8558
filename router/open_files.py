"""How many files, and so connections, this process may have open."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

MOST = 1 << 20  # a limit of billions is no limit; some libraries make tables of that size


def allow_all_files() -> int:
    """Raises the soft limit to the hard one, which is what the administrator allows. Returns it. The soft limit is
    1024 in many places, for the sake of programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("only %d files may be open: %s", soft, error)
            return soft
    return max(soft, wanted)
