"""An adapter to begin with works at once, or says in a sentence each what to change."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from command import call
from sharedtensor_conformance.adapter import (
    PROFILES,
    Implementation,
    Layout,
    operations_of,
)

PACKAGES = Path(__file__).parent / "packages"


@pytest.fixture
def new_adapter(tmp_path):
    """Write the adapter of a package; return its file."""

    def write(package: str) -> Path:
        done = call("new-adapter", package, "--folder", tmp_path)
        assert done.returncode == 0, done.stderr
        return tmp_path / f"{package}_conformance.py"

    return write


def paths(folder: Path) -> str:
    return os.pathsep.join([str(folder), str(PACKAGES)])


def check(file: Path) -> subprocess.CompletedProcess[str]:
    """Return what ``check-adapter`` says of the adapter in a file."""
    name = f"{file.stem}:conformance_adapter"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths(file.parent))  # of what loads the adapter
        done = call("check-adapter", name)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def problems(file: Path) -> list[str]:
    done = check(file)
    found = re.findall(r"^problem: (.*)$", done.stdout, re.MULTILINE)
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def test_layout_of_a_view_is_described_where_it_is_needed(new_adapter):
    """Who writes `view` knows its fields, and that bytes are not counted."""
    text = new_adapter("fine_arrays").read_text()
    _, _, stub = text.partition("def view(self, tensor: Tensor, layout: Layout)")
    described = stub.partition("raise NotImplementedError")[0]
    named = {field.name for field in fields(Layout)} - {"name"}
    assert {name for name in named if f"`{name}`" in described} == named
    assert "elements and not in bytes" in described


def uncommented(stubs: str) -> str:
    return re.sub(r"^    # ?", "    ", stubs, flags=re.MULTILINE)


def test_the_adapter_is_accepted_and_the_suite_judges_with_it(new_adapter):
    file = new_adapter("fine_arrays")
    checked = check(file)
    assert checked.returncode == 0, checked.stdout
    *_, told, next_command = checked.stdout.splitlines()
    assert told == (
        "0 problems in one process; sending and decoding are not checked. Next, send a "
        "tensor to another process:"
    )
    assert next_command == (
        f"  pytest --pyargs sharedtensor_conformance "
        f"--impl={file.stem}:conformance_adapter --clause=SHARE-1"
    )
    chosen = ["--start-method=fork", "-q", "-pno:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(next_command), *chosen],
        env=os.environ | {"PYTHONPATH": paths(file.parent)},
        cwd=file.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 clause held" in done.stdout


def test_the_next_commands_are_printed(tmp_path):
    printed = call("new-adapter", "mypkg", "--folder", tmp_path / "my tests").stdout
    name = "mypkg_conformance:conformance_adapter"
    path = f"PYTHONPATH='{tmp_path}/my tests'"
    assert f"  {path} shared-tensor-spec check-adapter {name}\n" in printed
    assert (
        f"  {path} pytest --pyargs sharedtensor_conformance --impl={name}\n" in printed
    )


def test_it_has_every_field_with_its_default_and_a_line_that_explains_it(new_adapter):
    lines = new_adapter("mypkg").read_text().splitlines()
    for field in fields(Implementation):
        (place,) = (n for n, line in enumerate(lines) if f"    {field.name}=" in line)
        assert lines[place - 1].startswith("    # "), field.name
        if field.name not in ("name", "operations", "claims", "version"):
            value = lines[place].partition("=")[2].removesuffix(",")
            assert eval(value) == field.default, field.name


def test_version_is_the_one_of_the_package_where_it_has_one(new_adapter, tmp_path):
    source = (PACKAGES / "fine_arrays.py").read_text()
    (tmp_path / "new_arrays.py").write_text(f"{source}\n\n__version__ = '2.5.1'\n")
    assert check(new_adapter("new_arrays")).stdout.startswith("new_arrays 2.5.1\n")
    assert check(new_adapter("fine_arrays")).stdout.startswith("fine_arrays unknown\n")


def test_problems_are_followed_by_no_next_command(new_adapter):
    assert check(new_adapter("empty_package")).stdout.endswith("\n1 problem\n")


def test_it_has_every_profile_and_operation_of_the_contract(new_adapter):
    text = new_adapter("mypkg").read_text()
    for profile in PROFILES:
        assert re.search(rf'^ +(# )?"{profile}",', text, re.MULTILINE), profile
        before = "" if profile == "core" else "# "
        for name in operations_of(profile) - {"multiprocessing"}:
            head = rf"    {before}def {name}\((\n    {before}    )?self"
            assert re.search(head, text), name


def test_all_that_is_a_comment_is_code(new_adapter):
    file = new_adapter("fine_arrays")
    head, share, stubs = file.read_text().partition("    # Profile share:")
    stubs = re.sub(r"^    # Profile .*\n", "", share + stubs, flags=re.MULTILINE)
    compile(head + uncommented(stubs), str(file), "exec")


def test_operations_that_are_unwritten_are_told_one_by_one(new_adapter):
    file = new_adapter("fine_arrays")
    text = file.read_text().replace('# "share",', '"share",')
    head, _, stubs = text.partition("    # Profile share:")
    share, identity, others = stubs.partition("    # Profile identity:")
    share = uncommented(share.partition("\n")[2])
    file.write_text(f"{head}\n{share}{identity}{others}")
    lines = file.read_text().splitlines()
    at = {
        name: next(n for n, line in enumerate(lines, 1) if f"def {name}(" in line)
        for name in ("clone", "is_shared", "share")
    }
    assert problems(file) == [
        f"profile 'share' is claimed but the operation {name!r} is not written yet "
        f"({file}, line {line}): write it, or drop the claim"
        for name, line in at.items()
    ]


def test_what_the_package_has_otherwise_is_told_one_by_one(new_adapter):
    file = new_adapter("other_arrays")
    told = "\n".join(problems(file))
    assert re.fullmatch(
        rf"""the operation 'shape' raised AttributeError: .* 'shape' \({file}, line .*
the operation 'dtype' returned 'object'; expected 'float32'
the operation 'values' returned \[<other_.*\]; expected \[1, 0, 1\]
the operation 'read' raised IndexError: .*
the operation 'write' raised TypeError: .*: change it so that it works with .*""",
        told,
    ), told


def test_what_makes_no_tensor_is_the_one_problem(new_adapter):
    file = new_adapter("empty_package")
    (problem,) = problems(file)
    assert problem.startswith(
        "the operation 'make' raised AttributeError: module 'empty_package' has no "
        f"attribute 'asarray' ({file}, line "
    )


def test_package_that_is_not_installed_is_told_in_a_sentence(new_adapter):
    file = new_adapter("no_such_package")
    done = check(file)
    assert done.returncode == 4
    lines = file.read_text().splitlines()
    line = lines.index("import no_such_package") + 1
    assert done.stderr.endswith(
        f"cannot be loaded: No module named 'no_such_package' ({file}, line {line})\n"
    )


@pytest.mark.parametrize("package", ["my-pkg", "", "my.pkg", "import", "3d", "a b"])
def test_name_of_no_package_is_wrong_use(package, tmp_path):
    done = call("new-adapter", package, "--folder", tmp_path)
    assert done.returncode == 4
    assert done.stderr == (
        f"shared-tensor-spec: {package!r} is not a package name: give the name that "
        f"follows `import`\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_nothing_is_overwritten(is_folder, tmp_path):
    file = tmp_path / "mypkg_conformance.py"
    file.mkdir() if is_folder else file.write_text("mine")
    done = call("new-adapter", "mypkg", "--folder", tmp_path)
    assert done.returncode == 4
    assert done.stderr == (
        f"shared-tensor-spec: {file} exists and is left as it is: give another "
        f"--folder\n"
    )
    assert is_folder or file.read_text() == "mine"


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        (__file__, r"test_new_adapter\.py is not a folder: give another --folder\n$"),
        ("/proc/1", r"cannot be written: \w.*\n$"),
    ],
)
def test_folder_that_cannot_be_written_to_is_wrong_use(folder, said):
    done = call("new-adapter", "mypkg", "--folder", folder)
    assert done.returncode == 4
    assert re.search(said, done.stderr)
