"""Opens the source of an address. Its library is imported here, because who serves local directories has no use for
it."""

from __future__ import annotations

from slipstream.router.model_files.sources.weights_source import SourceError, WeightsSource
from slipstream.router.model_files.sources.weights_url import WeightsUrl

EXTRAS = {"hf": "hub", "s3": "s3", "gs": "gs", "az": "az"}


def open_source(url: WeightsUrl) -> WeightsSource:
    """Raises SourceError if the package that reads it is not installed. Does not connect."""
    try:
        if url.scheme == "hf":
            from slipstream.router.model_files.sources.hub_source import HubSource

            return HubSource(url)
        if url.scheme == "https":
            from slipstream.router.model_files.sources.web_source import WebSource

            return WebSource(url)
        if url.scheme == "file":
            from slipstream.router.model_files.sources.directory_source import DirectorySource

            return DirectorySource(url)
        from slipstream.router.model_files.sources.object_source import ObjectSource

        return ObjectSource(url)
    except ImportError as error:
        extra = EXTRAS[url.scheme]
        raise SourceError(f"{url}: needs a package (pip install 'slipstream[{extra}]'): {error}") from None
