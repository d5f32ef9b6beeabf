"""What all scripts have in common: what they see, answer, and write down."""

import json
import re

import pytest

BROKEN = {
    "rounds.py --rounds=20 --start-method=fork --mutant=keeps_one_storage_in_ten": (
        "descriptors of the owner were"
    ),
    "rounds.py --rounds=20 --start-method=fork --mutant=drops_grad": (
        "arrived without its grad"
    ),
    "rounds.py --rounds=20 --start-method=fork --mutant=wipes_on_release": (
        "is no description of it"
    ),
    "rounds.py --rounds=20 --start-method=fork --mutant=copies_on_reshare": (
        "came back over other memory"
    ),
    "kills.py --seed=3 --only=4 --mutant=wipes_on_release": "wrong value: ",
    "kills.py --seed=8 --only=1 --mutant=manager_stays --grace=0.7": (
        r"0\.7 seconds after the end there is process"
    ),
    "hostile.py --only=7 --mutant=refused_file_stays": (
        r"5 seconds after the end there is .*\bname "
    ),
    "hostile.py --only=65 --mutant=receiver_gets_zeros_without_descriptors": (
        "saw wrong value"
    ),
    "hostile.py --only=9 --mutant=room_is_taken_at_the_first_touch": (
        "ended though nobody killed it"
    ),
}
"""Scripts on a reference that is broken, and what they say of it."""


@pytest.mark.parametrize("command", BROKEN)
def test_a_broken_reference_does_not_hold(run, needs, command):
    script, *options = command.split()
    if script == "hostile.py":
        needs("a full /dev/shm", "another /dev/shm", "no processes", "no memory")
        options.append("--hold=0.5")  # so somebody receives meanwhile, if it is busy
    done = run(script, *options, status=1)
    assert re.search(BROKEN[command], done.record["sentence"])
    if script == "rounds.py":
        assert not done.record["held"]
    else:
        episode = re.search(r"--only.*--mutant=\w+", command)[0].replace("=", " ")
        again = rf"Repeat it with: python evidence/soak/{script} --seed \d {episode}\n"
        assert re.search(again, done.said)


SCRIPTS = ("rounds.py", "kills.py", "killed_runs.py", "suite.py", "mixed.py")


@pytest.mark.parametrize("script", SCRIPTS)
def test_wrong_use_is_one_sentence(run, script):
    done = run(script, "--rounds=0", "--nonsense", status=4)
    assert len(done.said.splitlines()) == 1


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
    done = run("kills.py", *options, status=4)
    assert "cannot be written" in done.said
    assert "Traceback" not in done.said
