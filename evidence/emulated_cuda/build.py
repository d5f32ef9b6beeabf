"""Build the emulated CUDA runtime and put CuPy's own binding over it.

    python evidence/emulated_cuda/build.py FOLDER

CuPy's wheel has NVIDIA's runtime linked into its binding, so the binding is compiled
again from CuPy's source, of the same version, with NVIDIA's headers, and linked to the
library of this folder; the rest of CuPy is the wheel as it is. CuPy in the environment
of this interpreter is changed by that for good: do it in one that is made for it.

FOLDER gets `lib/libcuda.so.1`; LD_LIBRARY_PATH has to name FOLDER/lib.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BINDING = Path("cupy_backends", "cuda", "api", "runtime.pyx")
CONSTANTS = {
    "CUPY_CUDA_VERSION": 13000,
    "CUPY_HIP_VERSION": 0,
    "CUPY_USE_CUDA_PYTHON": False,
}


def site_packages() -> Path:
    """Return the folder of installed packages of this environment."""
    return Path(sysconfig.get_paths()["platlib"])


def headers() -> Path:
    """Return the folder of NVIDIA's headers."""
    return site_packages() / "nvidia" / "cu13" / "include"


def run(*command: object, **environment: str) -> None:
    """Run a command; its failure ends the build."""
    arguments = [str(part) for part in command]
    subprocess.run(arguments, check=True, env=os.environ | environment)


def build_library(folder: Path) -> Path:
    """Compile the library and return its path."""
    library = folder / "lib" / "libcuda.so.1"
    library.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(HERE.glob("*.c"))
    flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC")
    link = ("-shared", "-pthread", "-Wl,-soname,libcuda.so.1")
    run("gcc", *flags, *link, f"-I{headers()}", *sources, "-o", library)
    return library


def fetch_source(folder: Path) -> Path:
    """Return the source of the CuPy that is installed, unpacked below a folder."""
    version = importlib.metadata.version("cupy-cuda13x")
    source = folder / f"cupy-{version}"
    if not source.exists():
        pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps")
        what = ("--no-binary", "cupy", f"cupy=={version}", "--dest", folder)
        # Its set-up asks for a toolkit unless it is told that it builds documentation.
        run(*pip, *what, READTHEDOCS="True")
        with tarfile.open(folder / f"cupy-{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return source


def build_binding(source: Path, library: Path, folder: Path) -> Path:
    """Compile CuPy's binding of the runtime against the library."""
    code, module = folder / "runtime.cpp", folder / "runtime.so"
    constants = ",".join(f"{name}={value}" for name, value in CONSTANTS.items())
    cython = (sys.executable, "-m", "cython", "-3", "--cplus", "-w", source)
    directives = ("-X", "embedsignature=True,warn.deprecated.IF=False")
    run(*cython, *directives, "-E", constants, BINDING, "-o", code)
    places = (source / BINDING.parent, headers(), sysconfig.get_paths()["include"])
    flags = ("-w", "-O0", "-shared", "-fPIC", *(f"-I{place}" for place in places))
    run("g++", *flags, code, library, "-o", module)
    return module


def install_binding(module: Path) -> None:
    """Put the binding in the place of the one that came with CuPy."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    place = site_packages() / BINDING.with_name(f"runtime{suffix}")
    if not place.exists():
        sys.exit(f"{place} is missing: install cupy-cuda13x first.")
    shutil.copy(module, place)


def main() -> None:
    """Build into the folder that is named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the library is put")
    parser.add_argument(
        "--library", action="store_true", help="compile the library again, only"
    )
    options = parser.parse_args()
    folder = options.folder.resolve()
    library = build_library(folder)
    if not options.library:
        install_binding(build_binding(fetch_source(folder), library, folder))
    print(library)


if __name__ == "__main__":
    main()
