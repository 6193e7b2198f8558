"""The argument `CONFIG|MODEL` of commands."""

from __future__ import annotations

from pathlib import Path

import click

from slipstream.cluster.triton_flags.repository_flags import RepositoryFlags
from slipstream.router.model_files.sources.weights_url import WeightsUrl, WeightsUrlError

Target = Path | WeightsUrl
ServeTarget = Target | RepositoryFlags


class TargetType(click.ParamType[Target]):
    """A file or a directory, or the address of a model, whose `//` a path would lose."""

    name = "target"

    def convert(self, value: str | Target, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        if not isinstance(value, str):
            return value
        try:
            return WeightsUrl.parse(value) or Path(value)
        except WeightsUrlError as error:
            self.fail(str(error), param, ctx)
