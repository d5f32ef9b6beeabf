"""``shared-tensor-spec new-adapter``: writes a first adapter for the user's package.

The adapter has working code for the profile core. The other profiles follow as
comments, which are generated from the contract so that they cannot differ from it.
"""

from __future__ import annotations

import argparse
import inspect
import keyword
import shlex
import textwrap
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from sharedtensor_conformance.adapter import (
    ADAPTER_VERSION,
    PROFILES,
    operations_of,
)
from sharedtensor_conformance.cli.command import YES, Command, WrongUse
from sharedtensor_conformance.profiles import load_profiles

TEACHING = """\
The command writes a module PACKAGE_conformance.py. It has all fields of the contract
and the operations of the profile core. The operations of the other profiles are in it
as comments. An existing file is never overwritten.

The adapter works without changes for a package with these properties:
  - numpy.asarray(array) is a view of the memory of an array of the package;
  - PACKAGE.asarray(values) makes an array;
  - an array that is sent to another process is pickled without further help.
For other packages, check-adapter names the operations to change.

example:
  shared-tensor-spec new-adapter mypkg --folder tests

exit status:
  0    the adapter was written"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    text = "the name that imports your package"
    parser.add_argument("package", metavar="PACKAGE", help=text)
    text = "the folder to write the file to (default: the current folder)"
    parser.add_argument("--folder", metavar="DIR", default=".", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write the adapter and print the next commands."""
    package, folder = arguments.package, Path(arguments.folder)
    if not package.isidentifier() or keyword.iskeyword(package):
        raise WrongUse(
            f"{package!r} is not a package name: give the name that follows `import`"
        )
    module = f"{package}_conformance"
    file = folder / f"{module}.py"
    _write_new(file, adapter_for(package, module))
    name = f"{module}:conformance_adapter"
    path = f"PYTHONPATH={shlex.quote(str(folder.resolve()))} "
    print(f"Wrote {file}. Next:")
    print(f"  {path}shared-tensor-spec check-adapter {name}")
    print(f"  {path}pytest --pyargs sharedtensor_conformance --impl={name}")
    return YES


def _write_new(file: Path, content: str) -> None:
    """Write a file that does not exist yet.

    Raises:
        WrongUse: the file exists, or cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(content)
    except FileExistsError as error:
        exists = f"{file} exists and is left as it is"
        if not file.parent.is_dir():
            exists = f"{file.parent} is not a folder"
        raise WrongUse(f"{exists}: give another --folder") from error
    except OSError as error:
        raise WrongUse(f"{file} cannot be written: {error.strerror}") from error


def adapter_for(package: str, module: str) -> str:
    """Return the source of the adapter of `package`, for a module named `module`."""
    source = files("sharedtensor_conformance.cli").joinpath("adapter_template.txt")
    parts = {
        "PACKAGE": package,
        "MODULE": module,
        "VERSION": str(ADAPTER_VERSION),
        "CLAIMS": "\n".join(_claims()),
        "OPERATIONS": "\n".join(_operations()),
    }
    text = source.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _claims() -> Iterator[str]:
    """Yield a comment for each profile that is not claimed yet."""
    profiles = load_profiles()
    for name in PROFILES:
        if name != "core":
            needs = profiles[name].needs
            also = f"  needs {', '.join(needs)}" if needs else ""
            yield f'            # "{name}",{also}'


def _operations() -> Iterator[str]:
    """Yield comments with the operations of each profile that is not claimed yet."""
    for profile, protocol in PROFILES.items():
        if profile == "core" or protocol is None:
            continue
        yield f"\n    # Profile {profile}: {_purpose(protocol)}"
        for name in tuple(vars(protocol)):  # what is read there may add a name
            if name in operations_of(profile):
                yield "    #"
                yield from _stub(getattr(protocol, name))


def _purpose(protocol: type) -> str:
    first, _, _ = inspect.cleandoc(protocol.__doc__ or "").partition("\n")
    return first.partition(": ")[2]


def _stub(operation: object) -> Iterator[str]:
    """Yield an operation of the contract as commented code that is not implemented."""
    source = textwrap.dedent(inspect.getsource(operation)).rstrip()  # type: ignore[arg-type]
    for line in (*source.splitlines(), "    raise NotImplementedError"):
        yield f"    # {line}".rstrip()


command = Command(
    "new-adapter",
    "write a first adapter for your package",
    TEACHING,
    add_options,
    run,
)
