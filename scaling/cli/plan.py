"""Implement `scaling plan`: compose the study, call plan/plan_study.py, write the report and its answers."""

from rich.console import Console

from scaling.analysis import findings
from scaling.cli.commands import FAILED, OK
from scaling.cli.output import print_lines, show_preflight, show_run
from scaling.core.case import label
from scaling.plan import plan_study
from scaling.report.text import clean_text
from scaling.study.configuration import compose

HELP = """\
Compile a study for other hardware and predict its run times, without running it.

  scaling plan study=plan hardware=v5p                          every case, for TPU v5p
  scaling plan study=plan hardware=h100 'devices=[8,1024]'      on 8 and 1024, or devices=all (docs/plan.md)
  scaling plan study=linear hardware=cpu                        this CPU, from its measured ceilings
  scaling plan --config-dir my_conf study=mine hardware=mine    your hardware: my_conf/hardware/mine.yaml

Hardware: a100, b200, cpu, h100, h200, tpu7x, v4, v5e, v5p, v6e (conf/hardware). `scaling run --help` lists
the studies and the fields of a case. TPUs need the extra `plan-tpu`, GPUs `plan-gpu`: see `scripts/plan`.
Records with the status `planned` are written to results/<study>. The same command continues a stopped plan.
Exit status: as for `scaling run`."""


def execute(words: list[str], console: Console) -> int:
    """Predict the run times of a study. Return exit status 1 if a case failed, otherwise 0."""
    if not words or {"-h", "--help"} & set(words):
        console.print(HELP, markup=False)
        return OK
    config, name = compose(words, "plan")
    with show_preflight(console) as note:
        study = plan_study.prepare_plan(config, name, note)
    from scaling.report.page import write_report

    print_lines(console, [plan_study.describe_work(study)])
    labels = {checked.case.key: label(checked.case) for checked in study.cases}
    with show_run(console, labels, len(study.cases)) as (listen, counts):
        plan_study.run_plan(study, listen)
    study_findings = findings.read(study.folder)
    index = write_report(study.folder, study_findings)
    lines = plan_study.plan_lines(study, study_findings)
    outcomes = ", ".join(f"{counts[status]} {status}" for status in ("planned", "skipped", "failed"))
    outcomes += f", {study.done} already done" if study.done else ""
    print_lines(console, [*(f"- {clean_text(line)}" for line in lines), f"{outcomes}; report: {index}"])
    return FAILED if counts["failed"] else OK
