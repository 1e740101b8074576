"""A fixture that checks the cases of built-in workloads without a new process for each command."""

import pytest

from scaling.core.case import user_modules
from scaling.study import preflight


@pytest.fixture
def preflight_in_this_process(monkeypatch):
    """Check cases without a user's module in this process, which has imported JAX. The others keep their own process."""
    in_child_process = preflight._Examination._answer_in_order

    def answer_in_order(examination, problems):
        if user_modules(examination.cells[problems[0][0]].case):
            return in_child_process(examination, problems)
        from scaling.study import preflight_process as process

        for number in (number for numbers in problems for number in numbers):
            cell = examination.cells[number]
            examination.answers[number] = process.call_user_code(process.check_cell, cell)
        return problems.clear()

    monkeypatch.setattr(preflight._Examination, "_answer_in_order", answer_in_order)
