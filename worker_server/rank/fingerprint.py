"""A cheap fingerprint of the weights: equal replicas have equal fingerprints, bit for bit.

Theory of operation. After a commit all replica groups hold the same weights, bit by bit. Every N
steps each rank hashes the raw bits of its weights and publishes the value; comparing the values of
all groups shows the odd one out. Every tensor is read as 64-bit words, in blocks; the words of a
block are summed (an integer sum does not depend on the order in which a GPU adds), and the sums get
odd weights of their own and are summed in turn. One word that differs changes the value, except in
one case in 2^48; so do two, unless they cancel within one block.

What is hashed depends only on shapes, settings and the step, so all groups hash the same piece. On
a GPU nothing waits: the copy back is queued behind the work, and a later call publishes the value.
If a fingerprint costs more than a thousandth of the time since the last one, the rank doubles its
interval on its own: groups then still share every second step.

Works for every dtype, for DTensors (the local shard) and FSDP2. Uses torch as the caller imported
it.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightkeeper.worker_server.harmless import warn
from lightkeeper.worker_server.rank.page import layout

if TYPE_CHECKING:
    from torch import Tensor

    from lightkeeper.worker_server.rank.loop import Loop

ENVIRONMENT: Final = "LIGHTKEEPER_FINGERPRINT_EVERY"
DEFAULT_EVERY: Final = 10
"""Steps. Smaller finds corruption sooner; the cost is bounded by `_SHARE` anyway."""
CPU_PART_BYTES: Final = 16 * 2**20
"""The most that is read at once; larger shards go in parts, one per fingerprint, in turn. On a CPU
16 MiB take 2 to 5 ms (tests/bench)."""
PART_BYTES: Final = 4 * 2**30
"""The most on an accelerator, whose memory reads terabytes a second."""
_SHARE: Final = 1e-3
_MOST_STRIDE: Final = 1024
_BLOCK: Final = 8192
"""Words that are summed before they are weighted: 64 KiB."""
_SMALL: Final = 4 * _BLOCK
"""Up to this size a tensor is one block: saves a call for each of hundreds of small ones."""
_MASK: Final = 2**64 - 1
_MOST_PENDING: Final = 4


class Fingerprinter:
    """Takes and publishes fingerprints. Nothing here raises into training, or waits for a GPU."""

    def __init__(self, loop: Loop, environ: Mapping[str, str] = os.environ) -> None:
        self._loop = loop
        self._every = _setting(environ)
        self._stride = 1
        self._rows: list[tuple[int, int, int]] = []
        self._lane = 0
        self._lineage = 0
        self._rollbacks = 0
        self._last = -1
        self._pending: list[_Pending] = []
        self._weights: dict[Any, Tensor] = {}
        self._taken_s: float | None = None
        self._on = True

    def take(self, parameters: Any, step: int, every: int | None, shard: int) -> None:
        """Hash the weights as they are after the commit of `step`, if due."""
        if not self._on or not self._loop.on:
            return
        try:
            self._note_lineage()
            if self._pending:
                self._collect()
            every = self._every if every is None else every
            if every > 0 and _due(step, every, self._stride) and not self._healing:
                began_s = time.thread_time()
                if step <= self._last:  # back to a checkpoint: a new history begins
                    self._rollbacks += 1
                    self._note_lineage()
                self._last = step
                self._take(parameters, step, every, shard)
                if step % every == 0:  # the early ones are too close together to measure
                    self._pay(time.thread_time() - began_s)
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self._on = False
            warn(f"lightkeeper takes no fingerprints of the weights: {exc!r}")

    # -- lineage ----------------------------------------------------------------------------

    @property
    def _healing(self) -> bool:
        return bool(getattr(self._loop.manager, "_healing", False))

    def _note_lineage(self) -> None:
        """Weights from another group are evidence about that group only."""
        lineage = self._loop.heals + self._loop.page.heals + self._rollbacks
        if lineage != self._lineage:
            self._lineage = lineage
            self._pending.clear()
            if self._rows:
                self._rows.clear()
                self._publish()

    # -- hashing ----------------------------------------------------------------------------

    def _take(self, parameters: Any, step: int, every: int, shard: int) -> None:
        torch = sys.modules["torch"]
        with torch.no_grad():
            tensors = list(_tensors(parameters))
            lane = _lane(tensors, shard, every)
            if lane != self._lane:
                self._lane = lane
                self._rows.clear()
                self._pending.clear()
            part, parts = _part(tensors, step // every)
            sums: dict[Any, list[Tensor]] = {}
            for piece in _pieces(torch, tensors, part, parts):
                sums.setdefault(piece.device, []).append(piece.reshape(-1))
            totals = [self._total(torch, pieces) for pieces in sums.values()]
        row = _Pending(step, part, [_sent_home(torch, total) for total in totals])
        self._pending = [*self._pending, row][-_MOST_PENDING:]
        self._collect()

    def _total(self, torch: Any, sums: list[Tensor]) -> Tensor:
        """All sums of one device, weighted and summed, modulo 2^64."""
        row = torch.cat(sums)
        weights = self._weights.get(row.device)
        if weights is None or len(weights) < len(row):
            weights = self._weights[row.device] = _odd_weights(torch, len(row), row.device)
        total: Tensor = (row * weights[: len(row)]).sum()
        return total

    # -- publishing -------------------------------------------------------------------------

    def _collect(self) -> None:
        """Publish what has arrived."""
        done = [row for row in self._pending if row.there()]
        if not done:
            return
        self._pending = [row for row in self._pending if row not in done]
        for row in done:
            value = 0
            for number, _ in row.values:
                value = _mixed(value + (int(number.item()) & _MASK))
            self._rows.append((row.step, value >> 16, row.part))
        self._rows = sorted(self._rows)[-layout.PRINTS_KEPT :]
        self._publish()

    def _publish(self) -> None:
        self._loop.page.write_prints(self._lane, self._lineage, self._rows)

    def _pay(self, cost_s: float) -> None:
        """Take fewer, if they cost too much."""
        now_s = time.monotonic()
        before_s, self._taken_s = self._taken_s, now_s
        if before_s is not None and cost_s > _SHARE * (now_s - before_s):
            self._stride = min(_MOST_STRIDE, 2 * self._stride)


@dataclass(slots=True, eq=False)
class _Pending:
    step: int
    part: int
    values: list[tuple[Tensor, Any]]
    """Per device: a number in transfer, and the event that marks its arrival, or None."""

    def there(self) -> bool:
        return all(event is None or bool(event.query()) for _, event in self.values)


def _due(step: int, every: int, stride: int) -> bool:
    """Each `every * stride` steps; early also at 1, 2, 4 ...: shows if replicas ever were equal."""
    return step % (every * stride) == 0 or (0 < step < every and step & (step - 1) == 0)


def _setting(environ: Mapping[str, str]) -> int:
    text = environ.get(ENVIRONMENT) or str(DEFAULT_EVERY)
    try:
        return max(0, int(text))
    except ValueError:
        warn(f"lightkeeper takes no fingerprints: {ENVIRONMENT}={text!r} is no number")
        return 0


def _tensors(parameters: Any) -> Iterator[Tensor]:
    """What this rank holds of the tensors of a module, a mapping, an iterable, or (name, tensor)
    pairs; each in one dimension.
    """
    tensors: Iterable[Any] = parameters
    if callable(getattr(parameters, "parameters", None)):
        tensors = parameters.parameters()
    elif isinstance(parameters, Mapping):
        tensors = parameters.values()
    for item in tensors:
        tensor = item[1] if isinstance(item, tuple) else item
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        yield local.detach().reshape(-1)


def _lane(tensors: list[Tensor], shard: int, every: int) -> int:
    shapes = ";".join(f"{tensor.dtype}{tensor.numel()}" for tensor in tensors)
    setting = f"1 {shard} {every} {_part_bytes(tensors)} {_BLOCK}"
    return zlib.crc32(f"{setting} {shapes}".encode())


def _part_bytes(tensors: list[Tensor]) -> int:
    on_cpu = not tensors or tensors[0].device.type == "cpu"
    return CPU_PART_BYTES if on_cpu else PART_BYTES


def _sizes(tensors: list[Tensor]) -> list[int]:
    """In whole words."""
    return [tensor.numel() * tensor.element_size() // 8 for tensor in tensors]


def _part(tensors: list[Tensor], turn: int) -> tuple[int, int]:
    """Which part's turn it is, and how many there are."""
    # an odd number: a rank that takes every second, fourth ... visits all of them
    parts = -(-sum(_sizes(tensors)) * 8 // _part_bytes(tensors)) | 1
    return turn % parts, parts


def _pieces(torch: Any, tensors: list[Tensor], part: int, parts: int) -> Iterator[Tensor]:
    """Sums over one of the parts, and over remainders shorter than a word."""
    sizes = _sizes(tensors)
    width = -(-sum(sizes) // parts)
    low, high = part * width, (part + 1) * width
    begin = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        first, last = max(low - begin, 0), min(high - begin, size)
        if first < last:
            yield from _sums(_words(torch, tensor, first, last))
        per = 8 // tensor.element_size() or 1
        remainder = tensor.numel() % per
        if remainder:
            yield tensor[-remainder:].view(torch.uint8).sum(dtype=torch.int64)
        begin += size


def _words(torch: Any, tensor: Tensor, first: int, last: int) -> Tensor:
    """A stretch of the tensor as 64-bit words, counted from 0."""
    size = tensor.element_size()
    low, high = first * 8 // size, last * 8 // size
    stretch = tensor if high - low == tensor.numel() else tensor[low:high]
    if stretch.storage_offset() * size % 8:  # a shard may begin unaligned in its buffer
        stretch = stretch.clone()
    words: Tensor = stretch.view(torch.int64)
    return words


def _sums(words: Tensor) -> Iterator[Tensor]:
    count = len(words)
    in_blocks = count // _BLOCK * _BLOCK
    if count <= _SMALL:
        yield words.sum()
        return
    yield words[:in_blocks].view(-1, _BLOCK).sum(1)
    if in_blocks < count:
        yield words[in_blocks:].sum()


def _odd_weights(torch: Any, count: int, device: Any) -> Tensor:
    """Fixed pseudorandom numbers; odd, so that multiplying loses no difference."""
    numbers = (torch.arange(count, device=device) + 1) * _signed(0x9E3779B97F4A7C15)
    numbers = (numbers ^ numbers >> 30) * _signed(0xBF58476D1CE4E5B9)
    weights: Tensor = numbers ^ numbers >> 27 | 1
    return weights


def _sent_home(torch: Any, total: Tensor) -> tuple[Tensor, Any]:
    """The number on the CPU, and the event that marks its arrival, or None."""
    if total.device.type == "cpu":
        return total, None
    home = torch.empty((), dtype=torch.int64, pin_memory=True)
    home.copy_(total, non_blocking=True)
    return home, torch.accelerator.current_stream(total.device).record_event()


def _mixed(number: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit numbers."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _MASK
    return number ^ number >> 31


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
