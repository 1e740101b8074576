"""Early: what is finished of a study goes to W&B while the study runs, when nothing is being measured.

Knows when to publish, and when to let it be; not what is sent. It runs between two groups of cases, in the way of the study and
never beside a measurement, so it takes a small share of the time, and after the first trouble none.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scaling.wandb.publish import publish_early
from scaling.wandb.settings import TrackingSettings

_SHARE = 0.05  # of the time of a study, at most


@dataclass
class LivePublisher:
    """Called whenever nothing is measured; publishes what is finished if it is time."""

    folder: Path
    settings: TrackingSettings
    replicates: int
    say: Callable[[str], None]
    due: float = field(init=False)
    over: bool = False

    def __post_init__(self) -> None:
        self.due = time.monotonic() + self.settings.every

    def __call__(self) -> None:
        began = time.monotonic()
        if self.over or began < self.due:
            return
        published = publish_early(self.folder, self.settings, self.replicates)
        if published.reason:
            self.over = True
            self.say(f"W&B: {published.reason}; it is left alone until the study has ended")
        ended = time.monotonic()
        self.due = ended + max(self.settings.every, (ended - began) / _SHARE)
