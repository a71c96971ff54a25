"""Server-sent events on their way through: watched, and passed on as they come."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from leyline_agent.transport.call import Call, note, without_ids
from leyline_agent.transport.lowering import Lowering

# What SGLang writes into every chunk, whatever it is for.
_EVERYWHERE = ("id", "object", "created", "model", "system_fingerprint")
_END = re.compile(rb"\r?\n\r?\n")


@dataclass(slots=True)
class Watch:
    """Reads one stream's events; removes the token ids that we asked for.

    feed() takes bytes as they arrive and returns those to pass on: every complete event
    at once, unchanged when it carries no such ids. ended: [DONE] has come.
    """

    lowering: Lowering
    call: Call
    completion: str = ""
    ended: bool = False
    _rest: bytes = b""
    _closed: bool = field(default=False)

    def feed(self, data: bytes) -> bytes:
        """Pass on what is complete."""
        self.lowering.first_bytes(self.call)
        text, passed, at = self._rest + data, [], 0
        for end in _END.finditer(text):
            if event := self._seen(text[at : end.start()]):
                passed.append(event + end.group())
            at = end.end()
        self._rest = text[at:]
        return b"".join(passed)

    def finish(self) -> bytes:
        """The stream ended in order: what is left over."""
        rest, self._rest = self._rest, b""
        self._close()
        return rest

    def _close(self) -> None:
        """Enter the answer into the ledger, once; many clients stop reading at [DONE]."""
        if not self._closed:
            self._closed = self.ended = True
            self.lowering.close(self.call, self.completion)

    def _seen(self, event: bytes) -> bytes:
        """The event as it is to be passed on; empty when it was for us alone."""
        if event.startswith(b"data: [DONE]"):
            self._close()
        if not event.startswith(b"data: {") or (self.completion and not _telling(event)):
            return event
        try:
            chunk = json.loads(event[6:])
        except (ValueError, RecursionError):
            return event
        self.completion = str(chunk.get("id") or self.completion)
        if not note(self.call, chunk):
            return event
        theirs = without_ids(self.call, chunk)
        if theirs == chunk:
            return event
        ours_alone = not any(value for key, value in theirs.items() if key not in _EVERYWHERE)
        return b"" if ours_alone else b"data: " + json.dumps(theirs).encode()


def _telling(event: bytes) -> bool:
    """Whether a chunk may carry ids or usage: the others need not be parsed."""
    return b'"sglext"' in event or b'"usage":{' in event or b'"usage": {' in event
