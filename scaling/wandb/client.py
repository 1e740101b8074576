"""The program of the process in which wandb runs: read a job from standard input, do it, write events as JSON
lines.

Events about a run have its id in `run` and its `state`; the last event has `end`, or a `reason` for ending
early.
"""

import json
import os
import re
import sys
import threading
from typing import Any

from scaling.wandb.client_process import PublishJob, reason_of

OUT_OF_REACH = "deadline exceeded|[Tt]imed out|did not respond in time|connection refused|giving up"


def main() -> None:
    """Do the job on standard input."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing that wandb prints may come between the events
    lock = threading.Lock()

    def send_event(**event: Any) -> None:
        with lock:
            print(json.dumps(event), file=channel, flush=True)

    job = PublishJob.from_json(sys.stdin.read())
    try:
        from scaling.wandb import remote  # imports wandb

        send_event(ready=True)
        remote.run_job(job, send_event)
        send_event(end=True)
    except BaseException as error:
        send_event(reason=_describe_failure(error, job))


def _describe_failure(error: BaseException, job: PublishJob) -> str:
    if job.mode == "online" and re.search("not logged in|[Uu]nauthorized|API key", str(error)):
        return f"{job.base_url} does not accept the key; see WANDB_API_KEY or `wandb login`"
    if job.mode == "online" and re.search(OUT_OF_REACH, str(error)):
        return f"no answer from {job.base_url} in {job.timeout:g} s"
    return reason_of(error)


if __name__ == "__main__":
    main()
