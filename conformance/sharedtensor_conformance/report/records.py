"""Reads and writes the report of a run, a file in JSON Lines format.

The first line describes the run and the number of planned cases. Then there is a line
for each case, written as soon as the case ends. The last line is the summary. The
report of a run that was cut short has no summary. It can be read, and its
`Report.complete` is False. The schema of the lines is ``report.schema.json``, which
other tools can use as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Any, Self, TextIO, get_args, get_origin, get_type_hints

from fastjsonschema import JsonSchemaValueException
from fastjsonschema import compile as compile_schema
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.clauses import SPEC_VERSION, Clause
from sharedtensor_conformance.report.verdicts import Need, Verdict

SCHEMA_VERSION = 1

STAND_INS = frozenset({"simulated", "emulated"})
"""Devices that replace a real one; results on them never count as CUDA."""


class ReportError(Exception):
    """A report cannot be written or read; the message is one sentence."""


class _Recorded:
    """A part of a report, which is JSON data with the names of its fields."""

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return what `asdict` described; missing fields have their defaults."""
        kind: Any = cls
        found: Self = _decoder(kind)(data)
        return found


class _Line(_Recorded):
    """A line of a report."""

    def as_data(self) -> dict[str, Any]:
        """Return the line as JSON-ready data."""
        fields: Any = self
        return {"type": type(self).__name__.lower()} | asdict(fields)


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """Return a function that makes a value of the type of a field from JSON data."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind).items()
        return partial(_made, kind, {name: _decoder(hint) for name, hint in hints})
    if origin is tuple:
        item = _decoder(parts[0])
        return lambda data: tuple(map(item, data))
    if origin is dict:
        value = _decoder(parts[1])
        return lambda data: {key: value(one) for key, one in data.items()}
    if origin is UnionType:  # something or None
        some = _decoder(parts[0])
        return lambda data: None if data is None else some(data)
    return kind if issubclass(kind, StrEnum) else lambda data: data


def _made(
    kind: Any, decoders: Mapping[str, Callable[[Any], Any]], data: Mapping[str, Any]
) -> Any:
    given = {name: decoders[name](data[name]) for name in decoders if name in data}
    return kind(**given)


@dataclass(frozen=True)
class Subject:
    """The implementation that was judged, as a report records it."""

    name: str
    version: str
    claims: tuple[str, ...]
    strategies: tuple[str, ...]
    start_methods: tuple[str, ...]
    dtypes: tuple[str, ...]
    channels: tuple[str, ...]
    devices: tuple[str, ...]

    @classmethod
    def of(cls, implementation: Implementation) -> Subject:
        """Return the subject for an `implementation`."""
        names = [field.name for field in fields(cls)]
        declared = {name: getattr(implementation, name) for name in names}
        return cls(**declared | {"claims": tuple(sorted(implementation.claims))})

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True)
class SpecRecord:
    """The text of the spec that was judged: its version and the hash of each clause."""

    version: str
    hashes: dict[str, str]

    @classmethod
    def of(cls, clauses: Mapping[str, Clause]) -> SpecRecord:
        """Return the record of the spec that has these `clauses`."""
        return cls(SPEC_VERSION, {id: clause.hash for id, clause in clauses.items()})

    def other_than(self, clauses: Mapping[str, Clause]) -> list[str]:
        """Return the ids of the clauses whose text is not that of `clauses`."""
        others = SpecRecord.of(clauses).hashes
        ids = sorted({*self.hashes, *others})
        return [id for id in ids if self.hashes.get(id) != others.get(id)]


@dataclass(frozen=True)
class Gpu:
    """A GPU that was visible to the run, with its memory in MiB."""

    name: str
    mib: int

    def __str__(self) -> str:
        return f"{self.name} ({self.mib} MiB)"


@dataclass(frozen=True)
class Cuda(_Recorded):
    """The CUDA environment of a run on device memory.

    Args:
        emulated: whether it is the emulated runtime.
        driver: the release of the driver; empty if unknown.
        cuda: the newest CUDA version that the driver supports.
        runtimes: the CUDA version of each library with its own CUDA runtime.
        libraries: the versions of the libraries, by distribution name.
        gpus: the GPUs, in the order in which processes see them.
    """

    emulated: bool
    driver: str
    cuda: str
    runtimes: dict[str, str]
    libraries: dict[str, str]
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Machine(_Recorded):
    """The machine of a run; `cuda` is None if no CUDA device was requested."""

    python: str
    platform: str
    kernel: str
    cpus: int
    privileged: bool
    private_shm: bool
    cuda: Cuda | None = None


@dataclass(frozen=True)
class Shard:
    """The part of a selection that was run, so that the parts can be merged.

    Args:
        number: the number of the part, from 1.
        count: how many parts there are.
        cases: the number of cases of all parts together.
        plan: a digest of which case is in which part.
        full: whether the parts together are the full selection.
    """

    number: int
    count: int
    cases: int
    plan: str
    full: bool

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True)
class Selection(_Recorded):
    """What was selected for a run.

    Args:
        full: whether everything was selected, except devices that were not requested.
        options: the options of the suite that decide what is judged.
        device: the device that was requested.
        strict: whether SHOULD clauses also decide the exit status.
        expectations: the name of the file of known deviations.
        left_out: how many of the selected cases pytest deselected.
        left_out_by: the options of pytest that deselected them.
        shard: the part of the selection that was run; None means all of it.
        carried_over: the release whose known deviations were expected, if the judged
            one is newer than each that they were recorded of; else empty.
        command: the command that started the suite, without its options.
    """

    full: bool
    options: tuple[str, ...]
    device: str = "cpu"
    strict: bool = False
    expectations: str | None = None
    left_out: int = 0
    left_out_by: tuple[str, ...] = ()
    shard: Shard | None = None
    carried_over: str = ""
    command: tuple[str, ...] = ("pytest", "conformance")

    @property
    def host(self) -> bool:
        """Whether host memory was requested: no device is given, or ``cpu`` is."""
        named = [one for one in self.options if one.startswith("--device=")]
        return not named or "--device=cpu" in named


@dataclass(frozen=True)
class Run(_Line):
    """The first line: implementation, machine, selection and how many cases follow."""

    implementation: Subject
    suite: str
    spec: SpecRecord
    machine: Machine
    selection: Selection
    planned: int
    started: str
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Case(_Line):
    """The line of one case: one test in one configuration.

    Args:
        expected: False only for a broken verdict that no expectation covers.
        cause: the text of the expectation that covers it.
        repeated: whether a failure was the ``same`` in fresh processes or ``vanished``
            there; None if it was not repeated.
        leaking: the cases after which the ledger found the leaks that this case judges.
        left: the kinds of leaks that it found, for example ``descriptor /dev/null``.
        needs: what the machine would have to permit, if it was not run only for that.
    """

    id: str
    test: str
    clauses: tuple[str, ...]
    verdict: Verdict
    expected: bool = True
    device: str = "cpu"
    axes: dict[str, str] = field(default_factory=dict)
    evidence: str = ""
    cause: str = ""
    repeated: str | None = None
    checks: int = 0
    remote_calls: int = 0
    seconds: float = 0.0
    leaking: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    needs: Need | None = None

    def as_data(self) -> dict[str, Any]:
        """Return the line without the fields that have their defaults."""
        said = super().as_data().items()
        return {key: one for key, one in said if key not in USUAL or one != USUAL[key]}

    @property
    def state_dependent(self) -> bool:
        """Whether it failed once and held when it was repeated in fresh processes."""
        return self.repeated == "vanished"


NEEDED = ("id", "test", "clauses", "verdict")
_passed = asdict(Case("", "", (), Verdict.PASS))
USUAL = {name: value for name, value in _passed.items() if name not in NEEDED}
"""The fields of a case that its line can leave out, with what they are then."""


def by_clause(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Return the cases of each clause that they cite, by its id."""
    cited: dict[str, list[Case]] = {}
    for case in cases:
        for id in case.clauses:
            cited.setdefault(id, []).append(case)
    return cited


@dataclass(frozen=True)
class ClauseResult(_Recorded):
    """The result of a clause, from its cases.

    Args:
        needs: what the machine would have to permit, if no case judged the clause only
            for that.
    """

    verdict: Verdict
    level: str
    profile: str
    expected: bool
    devices: tuple[str, ...]
    cases: dict[str, int]
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True)
class Summary(_Line):
    """The last line: the result of each clause and of the whole run.

    Args:
        complete: whether all planned cases have a verdict.
        stopped: why the run ended early; empty if it did not, or if that is unknown.
    """

    cases: int
    verdicts: dict[str, int]
    clauses: dict[str, ClauseResult]
    stale: tuple[str, ...]
    conforms: bool
    exit_status: int
    complete: bool
    finished: str
    seconds: float
    stopped: str = ""


Line = Run | Case | Summary


@dataclass(frozen=True)
class Report:
    """A report that was read."""

    run: Run
    cases: tuple[Case, ...]
    summary: Summary | None
    source: str = ""

    @property
    def complete(self) -> bool:
        """Whether the run reached its end and judged all that it had planned."""
        return self.summary is not None and self.summary.complete


class ReportWriter:
    """Writes the lines of a report during a run, and flushes each line at once.

    Args:
        path: the file to write; its parent folders are created. None writes nothing.

    Raises:
        ReportError: the path cannot be written.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = Path(path) if path is not None else None
        self._file: TextIO | None = None
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8")
            except OSError as error:
                raise self._refused(error) from error

    def write(self, line: Line) -> None:
        """Write one line: the run first, then cases, the summary last.

        Raises:
            ReportError: the file can no longer be written, for example on a full disk.
        """
        if self._file is None:
            return
        try:
            self._file.write(text_of(line))
            self._file.flush()
        except OSError as error:
            raise self._refused(error) from error

    def close(self) -> None:
        """Close the file; closing it twice is allowed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _refused(self, error: OSError) -> ReportError:
        reason = error.strerror or str(error)
        return ReportError(f"the report {self.path} cannot be written: {reason}")


def text_of(line: Line) -> str:
    """Return a line of a report, as JSON in the fewest characters."""
    data = line.as_data()
    return json.dumps(data, allow_nan=False, separators=(",", ":")) + "\n"


def read_report(path: str | Path) -> Report:
    """Return the report in the file `path`.

    An incomplete last line is ignored, because its run was cut short.

    Raises:
        ReportError: the file cannot be read, or is not a report.
    """
    reading = _Reading(str(path))
    for number, data in _parsed_lines(path):
        try:
            reading.add(line_from(data))
        except ReportError as error:
            raise ReportError(f"{path}: line {number} {error}") from error
    return reading.finish()


class _Reading:
    """Builds a report from its lines, and refuses lines in the wrong order."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.run: Run | None = None
        self.cases: dict[str, Case] = {}
        self.summary: Summary | None = None

    def add(self, line: Line) -> None:
        if self.summary is not None:
            raise ReportError("comes after the summary, which has to be last")
        if isinstance(line, Run):
            if self.run is not None:
                raise ReportError("is a second run line; a report has only one")
            self.run = line
        elif self.run is None:
            raise ReportError("comes before the run line, which has to be first")
        elif isinstance(line, Summary):
            self.summary = line
        elif line.id in self.cases:
            raise ReportError(f"repeats the case {line.id}")
        else:
            self.cases[line.id] = line

    def finish(self) -> Report:
        if self.run is None:
            raise ReportError(f"{self.source} is empty: a report has a run line")
        found = len(self.cases)
        if self.summary is not None and self.summary.cases != found:
            raise ReportError(
                f"{self.source} holds {found} cases but its summary counts "
                f"{self.summary.cases}: lines were lost or added"
            )
        return Report(self.run, tuple(self.cases.values()), self.summary, self.source)


def _parsed_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    try:
        source = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ReportError(f"{path} is not a report: it is not UTF-8 text") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(f"the report {path} cannot be read: {reason}") from error
    *lines, cut_short = source.split("\n")
    for number, line in enumerate(lines, 1):
        try:
            yield number, json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise ReportError(f"{path}: line {number} is not JSON: {error}") from error
    if cut_short and not lines:
        raise ReportError(f"{path} is not a report: it has no complete line")


def _no_number(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number in JSON")


AGAIN = "run the suite again, or read it with the release that wrote it"
"""The advice for a report that this suite cannot read."""


def line_from(data: Any) -> Line:
    """Return the line of a report that was parsed from JSON.

    Raises:
        ReportError: it is not a line of a report; the message is to follow a place.
    """
    kinds: dict[str, type[Run] | type[Case] | type[Summary]] = {
        "run": Run,
        "case": Case,
        "summary": Summary,
    }
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        known = ", ".join(kinds)
        raise ReportError(f"violates the schema: its type is none of {known}; {AGAIN}")
    if kind == "run" and (said := _other_version(data)):
        raise ReportError(said)
    try:
        _validators()[kind](data)
    except JsonSchemaValueException as error:
        said = _complaint(kind, data) or error.message
        raise ReportError(f"violates the schema: {said}; {AGAIN}") from None
    return kinds[kind].from_data(data)


def _other_version(run: Mapping[str, Any]) -> str:
    """Return the message for a report in another version of its form, else ""."""
    version, suite = run.get("schema"), run.get("suite")
    if type(version) is not int or version == SCHEMA_VERSION:
        return ""
    wrote = f"shared-tensor-spec {suite}" if isinstance(suite, str) else "the suite"
    return (
        f"has version {version} of the form of reports, but this suite reads version "
        f"{SCHEMA_VERSION}: use {wrote}, which wrote the report"
    )


@cache
def _schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of each kind of line."""
    shared = load_schema()["$defs"]
    kinds = ("run", "case", "summary")
    return {kind: {"$ref": f"#/$defs/{kind}", "$defs": shared} for kind in kinds}


@cache
def _validators() -> dict[str, Callable[[Any], Any]]:
    """Return a compiled validator of each kind of line.

    They take a tenth of the time of `jsonschema`, which explains what they refuse.
    """
    return {kind: compile_schema(schema) for kind, schema in _schemas().items()}


def load_schema() -> dict[str, Any]:
    """Return the JSON Schema of one line of a report."""
    source = files("sharedtensor_conformance.report").joinpath("report.schema.json")
    schema: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return schema


def _complaint(kind: str, data: Any) -> str:
    error = best_match(Draft202012Validator(_schemas()[kind]).iter_errors(data))
    if error is None:
        return ""
    where = ".".join(str(step) for step in error.absolute_path)
    said = error.message
    message = said if len(said) <= 200 else f"{said[:197]}..."
    return f"{where}: {message}" if where else message
