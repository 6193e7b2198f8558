"""The command `slipstream batch`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import orjson

from slipstream.cluster.state.cluster_status import KEY_VARIABLE
from slipstream.cluster.state.clusters_here import cluster_here
from slipstream.cluster.terminal.command_error import CommandError, exit_on_command_error
from slipstream.cluster.terminal.console import Console
from slipstream.cluster.tools.batch.batch_client import BatchClient, NotThereError
from slipstream.cluster.tools.batch.batch_parts import BatchInputFile
from slipstream.cluster.tools.batch.batch_progress import BatchProgress

LOOK_EVERY_S = 1.0
LINE_EVERY_S = 10.0  # where no progress bar can be shown
OVER = ("completed", "failed", "expired", "cancelled")
BAR = 30  # characters
SOME_FAILED = 1


@click.command("batch")
@click.argument("source", metavar="INPUT", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("output", metavar="OUTPUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--errors", type=click.Path(dir_okay=False, path_type=Path), help="For failed requests.  [OUTPUT.errors]")
@click.option("--window", default="24h", show_default=True, help="How long it may take: a number and s, m, h or d.")
@click.option("--name", metavar="CLUSTER", help="The cluster, if several run on this machine.")
@click.option("--url", help="The router's URL, for a cluster on another machine.")
@click.option("--key", "--api-key", envvar=KEY_VARIABLE, help=f"The API key, if one is needed [env: {KEY_VARIABLE}].")
@click.option("--keep", is_flag=True, help="Leave the files in the cluster's store.")
@click.option("--cancel", is_flag=True, help="Cancel what an earlier call began, and keep what is there.")
def batch_command(
    source: Path,
    output: Path,
    errors: Path | None,
    window: str,
    name: str | None,
    url: str | None,
    key: str | None,
    keep: bool,
    cancel: bool,
) -> None:
    """Serve the requests in INPUT, one on each line as in OpenAI's Batch API, and write the answers to OUTPUT, in the
    same order. They go behind all other requests. If this is interrupted, the cluster goes on, and so does the same
    command when it is given again. Ends with status 1 if some requests failed, with 130 if it was interrupted."""
    if name is not None and url is not None:
        raise click.UsageError("give --name or --url, not both")
    console = Console(sys.stderr)
    errors = errors if errors is not None else output.with_name(f"{output.name}.errors")
    with exit_on_command_error():
        given = BatchInputFile(source)
        progress = BatchProgress.of(output.with_name(f"{output.name}.progress"), given.digest)
        if output.exists() and not progress.batch_ids:
            raise CommandError(f"{output} is there already; remove it first")
        for path in (output, errors):
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise CommandError(f"{path} cannot be written: {path.parent} is no folder that may be written to")
        base = url.rstrip("/").removesuffix("/v1") if url is not None else url_of_cluster(name)
        job = BatchJob(BatchClient(base, key, console.pending), given, progress, console)
        try:
            num_failed = job.run(output, errors, window, cancels=cancel, keeps=keep)
        except KeyboardInterrupt:
            if progress.batch_ids:
                console.say("The cluster goes on. The same command goes on here; with --cancel it ends.")
            else:
                console.say("Nothing has begun in the cluster. The same command begins it.")
            sys.exit(130)
    sys.exit(SOME_FAILED if num_failed else 0)


def url_of_cluster(name: str | None) -> str:
    """The URL of the cluster called `name` or, without a name, of the only one. Raises CommandError."""
    state = cluster_here(name, "--url http://HOST:PORT")
    if not state.url:
        raise CommandError(f"{state.name} does not listen yet")
    return state.url


class BatchJob:
    """Takes an input to its output. Every step is remembered, and not done again by the next call."""

    def __init__(self, client: BatchClient, given: BatchInputFile, progress: BatchProgress, console: Console) -> None:
        self._client = client
        self._given = given
        self._parts = given.parts()
        self._progress = progress
        self._console = console
        self._said_s = float("-inf")

    def run(self, output: Path, errors: Path, window: str, *, cancels: bool, keeps: bool) -> int:
        """Returns how many requests failed. Raises CommandError."""
        if cancels:
            self._cancel()
        else:
            self._send(window)
        batches = self._wait()
        num_done, num_failed = self._write(batches, output, errors)
        if not keeps:
            self._clean_up(batches)
        self._progress.path.unlink(missing_ok=True)
        missing = len(self._given.lines) - num_done - num_failed
        notes = [f"{num_done} answers in {output}"]
        notes += [f"{num_failed} errors in {errors}"] if num_failed else []
        notes += [f"{missing} not served"] if missing else []
        self._console.say(", ".join(notes))
        return num_failed + missing

    def _send(self, window: str) -> None:
        progress = self._progress
        for index in range(len(progress.batch_ids), len(self._parts)):
            part = self._parts[index]
            self._console.pending(f"sending part {index + 1} of {len(self._parts)}")
            name = f"{self._given.path.name}.{index + 1}.jsonl".replace('"', "_")
            file_id = self._client.upload(name, self._given.texts(part))
            batch_id = self._client.create(file_id, self._given.lines[part[0]].url, window)
            progress.file_ids.append(file_id)
            progress.batch_ids.append(batch_id)
            progress.save()

    def _cancel(self) -> None:
        if not self._progress.batch_ids:
            raise CommandError("there is nothing to cancel: no earlier call has begun with this output")
        self._parts = self._parts[: len(self._progress.batch_ids)]
        for batch_id in self._progress.batch_ids:
            with suppress(CommandError):  # it is over already
                self._client.cancel(batch_id)

    def _wait(self) -> list[dict[str, Any]]:
        """The batches, when all are over. Raises CommandError if one is gone, or was refused."""
        batches: dict[str, dict[str, Any]] = {}
        while True:
            for batch_id in self._progress.batch_ids:
                if batches.get(batch_id, {}).get("status") not in OVER:
                    batches[batch_id] = self._looked_at(batch_id)
            self._show(list(batches.values()))
            if all(batch["status"] in OVER for batch in batches.values()):
                return [batches[batch_id] for batch_id in self._progress.batch_ids]
            time.sleep(LOOK_EVERY_S)

    def _looked_at(self, batch_id: str) -> dict[str, Any]:
        try:
            batch = self._client.batch(batch_id)
        except NotThereError as error:
            message = f"{error} Perhaps the store was emptied; remove {self._progress.path} to begin anew."
            raise CommandError(message) from error
        if batch["status"] == "failed" and not batch["output_file_id"]:
            problems = [problem["message"] for problem in (batch["errors"] or {"data": []})["data"]]
            self._progress.path.unlink(missing_ok=True)
            raise CommandError("\n  ".join(["the router refused the batch:", *problems]))
        return batch

    def _show(self, batches: list[dict[str, Any]]) -> None:
        total = sum(len(part) for part in self._parts)
        done = sum(batch["request_counts"]["completed"] for batch in batches)
        failed = sum(batch["request_counts"]["failed"] for batch in batches)
        now = time.monotonic()
        text = f"{done + failed}/{total}{f', {failed} failed' if failed else ''}"
        filled = BAR * (done + failed) // total
        self._console.pending(f"[{'=' * filled}{' ' * (BAR - filled)}] {text}")
        if not self._console.is_live and now - self._said_s >= LINE_EVERY_S:
            self._said_s = now
            self._console.say(text)

    def _write(self, batches: list[dict[str, Any]], output: Path, errors: Path) -> tuple[int, int]:
        """Writes the answers and the errors in the order of the input. Returns their numbers."""
        self._console.pending("reading the answers")
        counts = [0, 0]
        try:
            for which, (kind, path) in enumerate((("output_file_id", output), ("error_file_id", errors))):
                file_ids = [batch[kind] for batch in batches if batch[kind]]
                if file_ids or path is output:
                    counts[which] = self._write_one(file_ids, path)
        except OSError as error:
            raise CommandError(f"the answers cannot be written: {error}") from error
        return counts[0], counts[1]

    def _write_one(self, file_ids: list[str], path: Path) -> int:
        """Writes one of them at once, or not at all. Returns the number of its lines."""
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            sources = [Path(folder) / str(number) for number in range(len(file_ids))]
            for file_id, source in zip(file_ids, sources, strict=True):
                self._client.download(file_id, source)
            whole = Path(folder) / "whole"
            num_lines = self._merge(sources, whole)
            whole.replace(path)
            return num_lines

    def _merge(self, sources: list[Path], target: Path) -> int:
        positions = {line.custom_id: position for position, line in enumerate(self._given.lines)}
        files = [source.open("rb") for source in sources]
        try:
            places = sorted(
                (positions[custom_id], index, offset, num_bytes)
                for index, file in enumerate(files)
                for custom_id, offset, num_bytes in results_in(file)
                if custom_id in positions
            )
            with target.open("wb") as merged:
                for _, index, offset, num_bytes in places:
                    files[index].seek(offset)
                    merged.write(files[index].read(num_bytes))
        finally:
            for file in files:
                file.close()
        return len(places)

    def _clean_up(self, batches: list[dict[str, Any]]) -> None:
        ids = [
            *self._progress.file_ids,
            *(batch[kind] for batch in batches for kind in ("output_file_id", "error_file_id")),
        ]
        for file_id in filter(None, ids):
            with suppress(CommandError):
                self._client.delete_file(file_id)


def results_in(file: Any) -> Iterator[tuple[str, int, int]]:
    """The `custom_id`, the offset and the length of each line."""
    offset = 0
    for text in file:
        yield orjson.loads(text)["custom_id"], offset, len(text)
        offset += len(text)
