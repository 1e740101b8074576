"""Every verb of the command with arguments that read a results folder DIR."""

from tests.support.commands import QUICK

RUN = [
    "run", "study=linear", "sizes.p=4", "sizes.o=2", "points=2", "devices=1", "mode=jacfwd", "dtype=float32",
    "study.ceilings=false",
]  # fmt: skip
VERBS = {
    "run": [*RUN, "results=DIR", *QUICK],
    "dry run": [*RUN, "results=DIR", "dry_run=true"],
    "plan": ["plan", *RUN[1:], "hardware=v5p", "results=DIR"],
    "status": ["status", "DIR"],
    "logs": ["logs", "DIR", "KEY"],
    "cancel": ["cancel", "DIR"],
    "report": ["report", "DIR"],
    "proposal": ["report", "DIR", "--proposal"],
    "compare from it": ["compare", "DIR", "GOOD"],
    "compare to it": ["compare", "GOOD", "DIR"],
    "lint": ["lint", "DIR"],
    "export": ["export", "DIR"],
    "merge from it": ["merge", "DIR", "GOOD", "--output", "merged"],
    "merge into it": ["merge", "GOOD", "--output", "DIR"],
    "publish": ["publish", "DIR", "--mode", "offline"],
}


def verb_arguments(verb, record):
    return [record.key if argument == "KEY" else argument for argument in VERBS[verb]]
