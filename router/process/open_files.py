"""The limit of open files, and so of connections, of this process."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

MOST = 1 << 20  # some systems allow billions, and some libraries allocate tables of the limit's size


def allow_all_files() -> int:
    """Raises the soft limit to the hard limit, which is what the administrator allows, and returns it. The soft limit
    is often 1024, only for the sake of programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("only %d files may be open: %s", soft, error)
            return soft
    return max(soft, wanted)
