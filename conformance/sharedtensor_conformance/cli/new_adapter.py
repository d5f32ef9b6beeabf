"""``shared-tensor-spec new-adapter``: an adapter to begin with, for one's own package.

What can be known of a package of shared arrays is written; the profiles that are not
claimed yet follow as comments, made from the contract, so they cannot differ from it.
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
The file is a module of its own, PACKAGE_conformance.py. It has all fields of the
contract and the operations of core; those of the other profiles are there as comments.
It works as it stands where numpy.asarray(array) looks at the memory of an array of the
package, PACKAGE.asarray(values) makes one, and arrays pickle by themselves when they
are sent; else check-adapter names the operations to change. No file is overwritten.

example:
  shared-tensor-spec new-adapter mypkg --folder tests"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    text = "the name by which your package is imported"
    parser.add_argument("package", metavar="PACKAGE", help=text)
    text = "where the file is written (default: the current folder)"
    parser.add_argument("--folder", metavar="DIR", default=".", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write the adapter and say what to do next."""
    package, folder = arguments.package, Path(arguments.folder)
    if not package.isidentifier() or keyword.iskeyword(package):
        raise WrongUse(
            f"{package!r} is no name of a package: give the name that follows `import`"
        )
    module = f"{package}_conformance"
    file = folder / f"{module}.py"
    _write_new(file, adapter_for(package, module))
    name = f"{module}:conformance_adapter"
    path = f"PYTHONPATH={shlex.quote(str(folder.resolve()))} "
    print(f"{file} is written. Next:")
    print(f"  {path}shared-tensor-spec check-adapter {name}")
    print(f"  {path}pytest --pyargs sharedtensor_conformance --impl={name}")
    return YES


def _write_new(file: Path, content: str) -> None:
    """Write a file that does not exist yet.

    Raises:
        WrongUse: something of this name exists, or it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(content)
    except FileExistsError as error:
        exists = f"{file} exists and is left as it is"
        if not file.parent.is_dir():
            exists = f"{file.parent} is no folder"
        raise WrongUse(f"{exists}: give another --folder") from error
    except OSError as error:
        raise WrongUse(f"{file} cannot be written: {error.strerror}") from error


def adapter_for(package: str, module: str) -> str:
    """Return the source of the adapter of `package` in a module of this name."""
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
        for name in vars(protocol):
            if name in operations_of(profile):
                yield "    #"
                yield from _stub(getattr(protocol, name))


def _purpose(protocol: type) -> str:
    first, _, _ = inspect.cleandoc(protocol.__doc__ or "").partition("\n")
    return first.partition(": ")[2]


def _stub(operation: object) -> Iterator[str]:
    """Yield an operation of the contract as a comment; it says that it is unwritten."""
    source = textwrap.dedent(inspect.getsource(operation)).rstrip()  # type: ignore[arg-type]
    for line in (*source.splitlines(), "    raise NotImplementedError"):
        yield f"    # {line}".rstrip()


command = Command(
    "new-adapter",
    "write an adapter to begin with, for a package of your own",
    TEACHING,
    add_options,
    run,
)
