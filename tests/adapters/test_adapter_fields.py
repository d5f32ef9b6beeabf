"""What an adapter says of its implementation is validated, field by field."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapter_fields import load_schema, problems_of_fields
from sharedtensor_conformance.adapter_trial.inspection import describe
from sharedtensor_conformance.adapters.loader import LoadingError
from sharedtensor_conformance.terms import load_terms

GOOD = Implementation("mine", "mine.conformance:Operations", frozenset({"core"}))


def problems(**changes):
    return problems_of_fields(
        json.loads(json.dumps(replace(GOOD, **changes).as_data()))
    )


def test_the_schema_has_the_fields_of_the_contract():
    assert list(load_schema()["properties"]) == [one.name for one in fields(GOOD)]


def test_fields_of_the_right_kinds_have_no_problems():
    whole = {"grace": 1, "segment_pattern": r"mine-{pid}-\d+", "channels": ("pipe",)}
    assert problems(**whole) == []
    assert Implementation.from_data(GOOD.as_data()) == GOOD


WRONG = {
    "name": (b"mine", "name has to be a string; it is b'mine'"),
    "operations": (len, "operations has to be a string; it is <built-in function len>"),
    "claims": ("core", "claims has to be a set of strings; it is 'core'"),
    "strategies": (
        "default",
        "strategies has to be a tuple of at most 100 strings; it",
    ),
    "dtypes": (
        (1, b"x"),
        "dtypes has to be a tuple of at most 100 strings; it is [1, ",
    ),
    "start_methods": (
        ("fork", "thread"),
        "start_methods has to be some of fork, spawn, forkserver; it is ['fork', 'thr",
    ),
    "channels": (None, "channels has to be some of queue, simple_queue, pipe; it is N"),
    "devices": (
        ("gpu",),
        "devices has to be some of cpu, simulated, emulated, cuda; it is ['gp",
    ),
    "segment_pattern": (
        "(",
        "segment_pattern has to be a regular expression; it is '(",
    ),
    "trace_steps": (
        ("share", "unlink"),
        "trace_steps has to be some of share, register, export, announce, send, rec",
    ),
    "kept_segments": (65, "kept_segments has to be a whole number from 0 to 64; it is"),
    "grace": (0, "grace has to be a positive number of seconds, at most 10; it is 0"),
    "deadline": (
        float("inf"),
        "deadline has to be a positive number of seconds, at most 60; it is",
    ),
    "patience": (True, "patience has to be a positive number of seconds, at most 600;"),
}

MAXIMA = {"grace": 10, "deadline": 60, "patience": 600}


@pytest.mark.parametrize("field", WRONG)
def test_a_field_of_a_wrong_kind_is_named_with_its_value_and_what_it_has_to_be(field):
    value, said = WRONG[field]
    (sentence,) = problems(**{field: value})
    assert sentence.startswith(said)


@pytest.mark.parametrize("value", [float("nan"), "3", -1, [3]])
def test_a_time_is_a_positive_number(value):
    assert len(problems(grace=value)) == 1


@pytest.mark.parametrize("field", MAXIMA)
def test_no_adapter_may_ask_for_more_time_than_the_specification_allows(field):
    most = MAXIMA[field]
    assert problems(**{field: most}) == []
    (sentence,) = problems(**{field: most + 1})
    kind = f"a positive number of seconds, at most {most}"
    assert sentence == f"{field} has to be {kind}; it is {most + 1}"


@pytest.mark.parametrize(
    ("field", "term"), [("grace", "grace period"), ("deadline",) * 2]
)
def test_the_terms_name_the_maxima_that_the_schema_has(field, term):
    definition = load_terms().by_form[term].definition
    assert f"at most {MAXIMA[field]} seconds" in definition


def test_more_than_a_hundred_names_are_too_many():
    assert problems(strategies=tuple(map(str, range(100)))) == []
    (sentence,) = problems(strategies=tuple(map(str, range(101))))
    assert len(sentence) < 160


def test_a_malformed_adapter_cannot_be_loaded(tmp_path, monkeypatch):
    (tmp_path / "malformed.py").write_text(
        "from sharedtensor_conformance.adapter import Implementation\n"
        "conformance_adapter = Implementation('x', 'none:None', {'core'}, grace='soon')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = "'malformed:conformance_adapter' is malformed: grace has to be a positive"
    with pytest.raises(LoadingError, match=said):
        describe("malformed:conformance_adapter")
