"""What the machine does not permit fails no run, and is told apart."""

from __future__ import annotations

import textwrap

import pytest
from sharedtensor_conformance.cli import main
from sharedtensor_conformance.report.verdicts import Need

BLOCK = f"""
Not judged here, since this machine does not permit it:
  a second user: SEC-4
{textwrap.indent(textwrap.fill(Need.SECOND_USER.remedy, 76), "    ")}

"""
WHY = f"since the machine does not permit a second user: {Need.SECOND_USER.remedy}"


@pytest.mark.takes(12)
def test_run_passes_without_the_clauses_and_the_gate_stays_closed(suite, capsys):
    done = suite("-p", "no_second_user", "--impl=narrow_adapters:names")
    assert done.status == 0, done.text
    assert BLOCK in done.text
    assert "judged by no case" not in done.text
    ending = " ".join(done.text.rpartition("\n\nnames")[2].split())
    assert "clauses held, 1 not judged here" in ending
    summary = done.report.summary
    assert (summary.conforms, summary.exit_status) == (False, 0)
    found = {id: result.needs for id, result in summary.clauses.items() if result.needs}
    assert found == {"SEC-4": (Need.SECOND_USER,)}
    assert main(["gate", str(done.file), "--require=core,grad"]) == 0
    capsys.readouterr()
    assert main(["gate", str(done.file), "--require=core,strategy-fs"]) == 1
    said = capsys.readouterr().out
    assert f"SEC-4 (Another user can open no segment) was not judged, {WHY}" in said
