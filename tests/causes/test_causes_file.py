"""What a file of causes may say: each malformed one is refused in one sentence."""

import pytest
from sharedtensor_conformance.report.causes import CausesError, load_causes

GOOD = {
    "promises": '["sharing", "P02"]',
    "expected": '"It arrives."',
    "where": '["pool.py: Pool.join", "aten/Map.cpp: Map::Map"]',
    "related": '["https://example.org/1"]',
}
SHARING = '[promises.sharing]\nsays = "It shares."\nsource = "https://example.org/d"\n'


@pytest.fixture
def load(tmp_path):
    """Load a file with one cause, and with what stands before it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "lost.py").touch()

    def loaded(entry=None, before=SHARING, name="lost"):
        lines = [f"{key} = {value}" for key, value in (entry or GOOD).items() if value]
        file = tmp_path / "mine.toml"
        file.write_text("\n".join([before, f"[causes.{name}]", *lines]) + "\n")
        return load_causes(file)

    return loaded


def test_file_with_every_key_is_read(load):
    found = load()
    cause = found.causes["lost"]
    assert cause.promises == ("sharing", "P02")
    assert cause.expected == "It arrives."
    assert cause.where == ("pool.py: Pool.join", "aten/Map.cpp: Map::Map")
    assert cause.related == ("https://example.org/1",)
    assert found.promises["sharing"].source == "https://example.org/d"


def test_cause_without_a_promise_has_the_reason(load):
    entry = {"no-promise": '"Nothing is said of it."', "where": GOOD["where"]}
    assert load(entry).causes["lost"].no_promise == "Nothing is said of it."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"where": ""}, "causes.lost violates the schema: 'where' is a required"),
        ({"where": '["join"]'}, "causes.lost.where.0 violates the schema: 'join'"),
        ({"where": "[]"}, "causes.lost.where violates the schema"),
        ({"expected": ""}, "causes.lost violates the schema: 'expected' is a required"),
        ({"promises": ""}, "causes.lost violates the schema"),
        ({"promises": "[]"}, "causes.lost.promises violates the schema"),
        ({"no-promise": '"Nothing is."'}, "causes.lost violates the schema"),
        ({"expected": '"no sentence"'}, "causes.lost.expected violates the schema"),
        ({"related": '["issue 1"]'}, "causes.lost.related.0 violates the schema"),
        ({"title": '"It is lost."'}, "causes.lost violates the schema"),
        ({"promises": '["copies"]'}, "the promise 'copies' is not known: write"),
    ],
)
def test_malformed_cause_is_refused_in_one_sentence(load, change, said):
    with pytest.raises(CausesError, match=r"mine\.toml: ") as error:
        load(GOOD | change)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("[promises.sharing", "is not TOML"),
        ("[other]\n", "the file violates the schema"),
        ('[promises.sharing]\nsays = "It shares."\n', "'source' is a required"),
        (SHARING.replace("sharing", "Shares"), "violates the schema: 'Shares'"),
    ],
)
def test_malformed_file_is_refused(load, before, said):
    with pytest.raises(CausesError) as error:
        load(before=before)
    assert said in str(error.value)


def test_file_is_about_the_programs_beside_it(load):
    with pytest.raises(CausesError, match=r"causes\.lost is missing: the program is"):
        load(name="kept")


def test_cause_needs_its_program(load, tmp_path):
    (tmp_path / "mine" / "lost.py").unlink()
    with pytest.raises(CausesError, match=r"causes\.lost: there is no mine/lost\.py"):
        load()


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(CausesError, match="cannot be read"):
        load_causes(tmp_path / "none.toml")


ON_A_DEVICE = '[device.stuck]\nno-promise = "Nothing is said of it."\n'


def test_programs_for_a_device_need_a_promise_or_why_there_is_none(load, tmp_path):
    folder = tmp_path / "mine" / "device"
    folder.mkdir(parents=True)
    (folder / "stuck.py").write_text("")
    with pytest.raises(CausesError, match=r"device\.stuck is missing: the program is"):
        load()
    found = load(before=SHARING + ON_A_DEVICE)
    assert found.device["stuck"].no_promise == "Nothing is said of it."
    assert "stuck" not in found.causes
    with pytest.raises(CausesError, match=r"device\.stuck: the promise 'none' is not"):
        load(before=SHARING + '[device.stuck]\npromises = ["none"]\n')
    with pytest.raises(CausesError, match=r"device\.stuck violates the schema"):
        load(before=SHARING + "[device.stuck]\n")
