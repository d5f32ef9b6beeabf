"""What a report says of GPUs, driver and libraries, and how that is found out."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import report_samples as samples
from report_samples import view
from sharedtensor_conformance.plugin import cuda_facts
from sharedtensor_conformance.report.markdown import markdown
from sharedtensor_conformance.report.records import Cuda, Gpu, ReportError, read_report
from sharedtensor_conformance.report.terminal import render

MET = Cuda(
    emulated=False,
    driver="580.65.06",
    cuda="13.0",
    runtimes={"cupy": "13.0"},
    libraries={"cupy-cuda13x": "14.2.0"},
    gpus=(Gpu("A GPU", 81559), Gpu("A GPU", 81559)),
)
SENTENCE = (
    "GPUs: A GPU (81559 MiB), A GPU (81559 MiB); driver 580.65.06 for CUDA 13.0, "
    "cupy-cuda13x 14.2.0, runtime of cupy 13.0."
)


def report_on(cuda):
    return samples.changed(
        samples.report([samples.case("SHARE-1")]), "machine", cuda=cuda
    )


def lines_without_facts(tmp_path):
    lines = samples.lines(report_on(None))
    del lines[0]["machine"]["cuda"]
    return samples.write(tmp_path / "old.jsonl", lines)


def test_what_was_met_is_read_back_equal(tmp_path):
    written = samples.write(tmp_path / "new.jsonl", samples.lines(report_on(MET)))
    assert read_report(written).run.machine.cuda == MET


def test_a_report_of_before_these_facts_is_read(tmp_path):
    assert read_report(lines_without_facts(tmp_path)).run.machine.cuda is None


def test_facts_that_are_none_are_refused(tmp_path):
    lines = samples.lines(report_on(MET))
    lines[0]["machine"]["cuda"]["gpus"] = [{"name": "A GPU"}]
    with pytest.raises(ReportError, match="'mib' is a required property"):
        read_report(samples.write(tmp_path / "bad.jsonl", lines))


@pytest.mark.parametrize("form", [render, markdown])
def test_every_view_names_what_was_met(form):
    found = report_on(MET)
    text = form(view(found))
    assert SENTENCE in " ".join(text.split())


@pytest.mark.parametrize("form", [render, markdown])
def test_emulated_devices_are_never_shown_as_gpus(form):
    found = report_on(replace(MET, emulated=True, driver=""))
    text = " ".join(form(view(found)).split())
    assert "Emulated GPUs, never CUDA: A GPU" in text
    assert "; driver for CUDA 13.0" in text


# How they are found out


class Library:
    """A driver with one GPU."""

    def __init__(self, status=0):
        self.cuInit = lambda flags: status

    def cuDriverGetVersion(self, out):
        out._obj.value = 12080

    def cuDeviceGetCount(self, out):
        out._obj.value = 1

    def cuDeviceGet(self, out, index):
        out._obj.value = index

    def cuDeviceGetName(self, out, size, device):
        out.value = b"A GPU"

    def cuDeviceTotalMem_v2(self, out, device):
        out._obj.value = 7 << 20


@pytest.fixture
def driver(monkeypatch):
    def install(library):
        monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
        monkeypatch.setattr(cuda_facts, "_runtimes", lambda: [("cupy", "12.9")])

    return install


def test_the_driver_is_asked(driver, monkeypatch, tmp_path):
    driver(Library())
    release = tmp_path / "version"
    release.write_text("570.86.10\n")
    monkeypatch.setattr(cuda_facts, "DRIVER_VERSION_FILE", str(release))
    found = Cuda.from_data(cuda_facts.facts())
    assert found.gpus == (Gpu("A GPU", 7),)
    assert (found.driver, found.cuda, found.emulated) == ("570.86.10", "12.8", False)
    assert found.runtimes == {"cupy": "12.9"}


def test_a_driver_that_does_not_start_shows_no_gpu(driver):
    driver(Library(status=999))
    assert cuda_facts.facts()["gpus"] == []


def test_the_library_of_the_emulated_runtime_is_told(driver):
    library = Library()
    library.sharedtensor_emulated_cuda = 1
    driver(library)
    assert cuda_facts.facts()["emulated"]


def test_the_runtime_of_torch_is_read_from_its_file(monkeypatch, tmp_path):
    (tmp_path / "version.py").write_text("cuda = '13.0'\n")
    origin = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(cuda_facts, "find_spec", lambda name: origin)
    assert dict(cuda_facts._runtimes())["torch"] == "13.0"


@pytest.mark.parametrize(
    "program",
    ["import sys; sys.exit(1)", "print('no JSON')", "import time; time.sleep(60)"],
)
def test_facts_that_cannot_be_had_are_none(monkeypatch, tmp_path, program):
    script = tmp_path / "facts.py"
    script.write_text(program)
    monkeypatch.setattr(cuda_facts, "__file__", str(script))
    monkeypatch.setattr(cuda_facts, "TIMEOUT", 5.0 if "sleep" not in program else 0.1)
    assert cuda_facts.facts_of() is None


def test_a_line_of_facts_is_what_the_program_prints(monkeypatch, tmp_path):
    script = tmp_path / "facts.py"
    script.write_text(f"print({json.dumps({'emulated': True})!r})")
    monkeypatch.setattr(cuda_facts, "__file__", str(script))
    assert cuda_facts.facts_of() == {"emulated": True}
