"""Choose the AD mode, chunk and block of a case with mode=auto from predicted times, without measuring it."""

import dataclasses

from scaling.advice import candidates, local_peaks, prediction
from scaling.core.case import Case
from scaling.core.run_case import CaseEnded, ProcessGroup


def choose_case(case: Case, group: ProcessGroup) -> Case:
    """Return the case with the AD mode, batch, chunk and block that are predicted to be the fastest.

    The candidates are compiled to predict their times. Raise `CaseEnded` if the rates of the machine are
    unknown, or if no candidate fits into memory.
    """
    cases, _, _ = candidates.list_candidates(dataclasses.replace(case, mode=case.ad_mode.name))
    hardware = local_peaks.model_this_machine(cases, group.cores)
    if hardware is None:
        text = f"mode=auto needs the rates of the machine, and conf/hardware has none for {group.devices[0]}"
        raise CaseEnded("skipped", "not_offered", text)
    fields = prediction.predict_candidates(cases, hardware, lambda text: None)
    seconds = {each: of["predicted"]["seconds"] for each, of in fields.items() if of.get("predicted")}
    feasible = [each for each in seconds if fields[each].get("status") == "planned"]
    if not feasible:
        reason = next((str(of["text"]) for of in fields.values() if of.get("text")), "none is defined")
        raise CaseEnded("skipped", "too_large", f"mode=auto found no mode: {reason}")
    # A candidate with a text, which is a doubt about its prediction, is the last choice.
    return min(feasible, key=lambda each: (bool(fields[each].get("text")), seconds[each]))
