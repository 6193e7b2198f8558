"""Reads an output in harmony: messages with a header that says what they are."""

from __future__ import annotations

import re

from slipstream.router.parsers.description.output_format import ChannelsPart
from slipstream.router.parsers.output_parts import CallWriter, OutputParts
from slipstream.router.parsers.readers.json_values import NO_ARGUMENTS, read_arguments
from slipstream.router.parsers.readers.marker_set import marker_set
from slipstream.router.parsers.readers.text_input import EndOfTextError, MismatchError, Reading, TextInput
from slipstream.router.parsers.text_writer import TextWriter

RECIPIENT = re.compile(r"(?:^|\s)to=([^\s\ud800-\udfff<]+)")
MAX_HEADER = 1024  # characters


class ChannelsReader:
    """A message is reasoning, content or a call, by its channel and its recipient."""

    def __init__(self, channels: ChannelsPart, source: TextInput, output: OutputParts, reads_calls: bool) -> None:
        self._channels = channels
        self._source = source
        self._output = output
        self._reads_calls = reads_calls

    def read(self, begins_in_reasoning: bool) -> Reading[None]:
        """The whole output. The header of its first message has begun in the prompt, and has ended there if it
        `begins_in_reasoning`. Raises EndOfTextError, or returns when no more is asked for."""
        channels, source = self._channels, self._source
        if begins_in_reasoning:
            yield from self._read_message(channels.channel + channels.reasoning_channel)
        elif (yield from source.sees((*channels.marks, channels.recipient))) is not None:
            yield from self._read_message((yield from self._read_header()))
        while not self._output.is_over:
            yield from source.accept((channels.end, channels.call, channels.over))
            yield from self._read_text(self._output.content)
            self._output.content.at_marker()
            if (yield from source.sees((channels.start, channels.channel))) is not None:
                yield from self._read_message((yield from self._read_header()))

    def _read_header(self) -> Reading[str]:
        """What stands before the next message, from its role on. What is no header is content, and the header of it is
        empty."""
        channels, source = self._channels, self._source
        marks = marker_set((channels.message, channels.start, channels.end, channels.call, channels.over))
        header = ""
        while True:
            end, found = marks.find(source.text, source.at)
            header += source.text[source.at : end]
            if len(header) > MAX_HEADER:
                self._output.content.write(header[:MAX_HEADER])
                source.move_to(end - len(header) + MAX_HEADER)
                return ""
            source.move_to(end + len(found or ""))
            if found == channels.message:
                return header
            if found is not None:
                header = ""
            else:
                yield from source.wait()

    def _read_message(self, header: str) -> Reading[None]:
        channels, output = self._channels, self._output
        recipient = self._recipient(header)
        if recipient is not None:
            yield from self._read_call(recipient)
        elif self._channel(header) == channels.reasoning_channel:
            output.begin_reasoning()
            yield from self._read_text(output.reasoning)
            output.end_reasoning()
        else:
            yield from self._read_text(output.content)
            output.content.at_marker()

    def _channel(self, header: str) -> str:
        """The word behind the channel's mark."""
        words = header.rpartition(self._channels.channel)[2].split(maxsplit=1)
        return words[0].partition(self._channels.constrain)[0] if words else ""

    def _recipient(self, header: str) -> str | None:
        """The function that is called, if it is one of the request's, or is said to be one."""
        found = RECIPIENT.search(header.replace(self._channels.channel, " ")) if self._reads_calls else None
        if found is None:
            return None
        name = found[1].removeprefix(self._channels.recipient_prefix)
        return name if name and (name != found[1] or name in self._output.tools) else None

    def _read_text(self, writer: TextWriter) -> Reading[None]:
        channels, source = self._channels, self._source
        marks = marker_set((channels.start, channels.end, channels.call, channels.over, channels.channel))
        while True:
            end, found = marks.find(source.text, source.at, source.is_final)
            writer.write(source.text[source.at : end])
            source.move_to(end)
            if found is not None:
                return
            yield from source.wait()

    def _read_call(self, name: str) -> Reading[None]:
        call = CallWriter(self._output, only_tools=False)
        call.begin(name, "")
        try:
            character = yield from self._source.skip_white()
            if character in '{["':
                yield from read_arguments(self._source, call.write)
            else:
                writer = TextWriter(call.write)
                yield from self._read_text(writer)
                call.write(NO_ARGUMENTS if writer.is_empty else "")
        except MismatchError:
            pass
        except EndOfTextError:
            call.end(is_complete=False)
            raise
        call.end(is_complete=True)
