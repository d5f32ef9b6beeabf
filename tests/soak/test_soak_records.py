"""What all scripts have in common: how they answer, and what they write down."""

import json

import pytest

SCRIPTS = ("rounds.py", "kills.py", "killed_runs.py", "suite.py", "mixed.py")


@pytest.mark.parametrize("script", SCRIPTS)
def test_wrong_use_is_one_sentence(run, script):
    done = run(script, "--rounds=0", "--nonsense")
    assert done.status == 4
    assert len(done.said.splitlines()) == 1
    assert done.left == []


def test_a_record_is_json_that_can_be_read(scripts):
    from recording import as_text

    record = {"row": list(range(200)), "deep": {"a": [{"b": 1}] * 20}, "none": {}}
    text = as_text(record)
    assert json.loads(text) == record
    assert len(text.splitlines()) == 28


def test_the_command_names_no_path_of_the_machine(scripts, monkeypatch):
    import recording

    monkeypatch.setattr("sys.argv", ["/somewhere/soak/kills.py"])
    given = ["--seed", "3", "--out", "/a/b.json", "--out=/c.json", "--kills", "5"]
    command = "python evidence/soak/kills.py --seed 3 --kills 5"
    assert recording.command_line(given) == command


def test_a_record_that_cannot_be_written_is_one_sentence(run, tmp_path):
    (tmp_path / "file").touch()
    options = ("--only=0", "--kills=0", f"--out={tmp_path}/file/record.json")
    done = run("kills.py", *options)
    assert done.status == 4
    assert "cannot be written" in done.said
    assert "Traceback" not in done.said
