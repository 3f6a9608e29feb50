"""Compile tracehook for aarch64 on another machine, and try it under QEMU. Argument: the folder to work in.

The C++ cases and unit tests run with pages of 4 KiB and of 64 KiB. A rehearsal of two ranks, with torch's own wheel for
aarch64, runs with pages of 4 KiB: with larger ones QEMU 7.2 maps the end of the dynamic linker's memory wrongly.

Needs Debian or Ubuntu, and root for the first of these commands:

    dpkg --add-architecture arm64; apt-get update; apt-get install g++-aarch64-linux-gnu qemu-user
    make aarch64

QEMU runs the threads of a program on x86, whose order of memory accesses is stronger than that of aarch64. So this
shows nothing about memory orders.
"""

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPP = ROOT / "tracehook" / "cpp"
PAGES = (4096, 65536)
PYTHON = "3.11"  # Debian's
SUFFIX = ".cpython-311-aarch64-linux-gnu.so"
PACKAGES = (
    *(
        "python3.11-minimal",
        "libpython3.11-minimal",
        "libpython3.11-stdlib",
        "libexpat1",
        "zlib1g",
        "libssl3",
        "libffi8",
    ),
    *("libc6", "libstdc++6", "libgcc-s1", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1"),
)
TORCH = ("torch===2.11.0", "numpy", "setuptools")
READERS = ("hypothesis", "pytest", "pytest-timeout", "typer", "rich", "duckdb", "psutil")
# Those that need no torch.
UNIT = (
    *("ring", "ring_file", "gate", "registrar_order", "all_or_nothing", "bank", "state_machine", "ranges", "windows"),
    *("reader", "parts", "logs", "summary"),
)
CASES = {
    "thread_cases": ("nccl/group", "nccl/birth", "nccl/registration_calls", "cuda/device_wait", "cuda/runtime"),
    "cases": ("nccl/group", "nccl/birth", "nccl/registration_calls", "cuda/device_wait", "cuda/runtime"),
    "window_cases": (
        *("process/symmetric_memory", "torch/pool", "torch/settling", "torch/hook_library"),
        *("nccl/placement", "nccl/graphs", "cuda/runtime"),
    ),
}


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a command; end the program if it fails."""
    done = subprocess.run(command, env=os.environ | (env or {}), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"aarch64: {' '.join(map(str, command[:6]))} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )


def make_python(folder: Path) -> Path:
    """Take Python for aarch64 from Debian's packages; return a script that runs it, on pages of $PAGES."""
    root, packages, site = folder / "root", folder / "packages", folder / "site"
    if not root.exists():
        packages.mkdir(exist_ok=True)
        run("apt-get", "download", *(f"{name}:arm64" for name in PACKAGES), cwd=packages)
        for package in packages.glob("*.deb"):
            run("dpkg", "-x", package, root)
    script = folder / "python"
    script.write_text(
        f"#!/bin/sh\nexport QEMU_LD_PREFIX={root} PYTHONPATH={site}\n"
        f'exec qemu-aarch64 -p "${{PAGES:-4096}}" {root}/usr/bin/python{PYTHON} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    site.mkdir(exist_ok=True)
    # What a test starts by sys.executable has to run under QEMU, too.
    (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = sys._base_executable = {str(script)!r}\n")
    return script


def install(site: Path, packages: Iterable[str]) -> None:
    """Install wheels for aarch64, whatever glibc they are for."""
    systems = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 40))]
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile", "--upgrade"),
        *("--target", site, "--only-binary=:all:", "--python-version", PYTHON),
        *(word for system in systems for word in ("--platform", system)),
        *packages,
    )


def make_wheel(folder: Path, site: Path) -> Path:
    """Compile the wheel, with what the unit tests need, and unpack it; return it."""
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    defines = {
        "CMAKE_TOOLCHAIN_FILE": CPP / "aarch64.cmake",
        "PYTHON_MODULE_EXTENSION": SUFFIX,
        "TRACEHOOK_TESTING": "ON",
        "TRACEHOOK_WERROR": "ON",
    }
    run(
        *(
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "wheel",
            "-q",
            "--no-build-isolation",
            "--no-deps",
        ),
        *("--config-settings=install.strip=true", f"--config-settings=build-dir={folder / 'build'}", "-w", wheels),
        *(f"--config-settings=cmake.define.{name}={value}" for name, value in defines.items()),
        ROOT,
        env={"_PYTHON_HOST_PLATFORM": "linux-aarch64", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    (wheel,) = wheels.glob("*_aarch64.whl")
    shutil.rmtree(site / "tracehook", ignore_errors=True)
    run(sys.executable, "-m", "zipfile", "-e", wheel, site)
    return wheel


def run_cases(folder: Path) -> None:
    """Compile the scripted interleavings of tests/cpp, and run them on pages of both sizes."""
    core = [file for room in ("events", "registrar", "windows") for file in sorted((CPP / room).glob("*.cpp"))]
    for name, more in CASES.items():
        program = folder / name
        sources = [
            ROOT / "tests" / "cpp" / f"{name}.cpp",
            Path(__file__).with_name("no_leaks.cpp"),
            *core,
            *(CPP / f"{each}.cpp" for each in more),
        ]
        flags = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{CPP}")
        run("aarch64-linux-gnu-g++", *flags, "-o", program, *sources)
        for pages in PAGES:
            run("qemu-aarch64", "-L", folder / "root", "-p", str(pages), program)


def main() -> None:
    """Do all, and say in a line what each step took."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    python, site = make_python(folder), folder / "site"
    began = time.monotonic()

    def tell(what: str) -> None:
        nonlocal began
        now = time.monotonic()
        print(f"aarch64: {what} ({now - began:.0f} s)", flush=True)
        began = now

    run_cases(folder)
    tell("the C++ cases passed with pages of 4 and of 64 KiB")
    install(site, READERS)
    wheel = make_wheel(folder, site)
    tell(f"{wheel.name} has {wheel.stat().st_size / 1e6:.1f} MB")
    tests = [ROOT / "tests" / "unit" / f"test_{name}.py" for name in UNIT]
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml")
    for pages in PAGES:
        run(*pytest, "--rootdir", ROOT / "tests", *tests, env={"PAGES": str(pages)}, cwd=folder)
        tell(f"{len(tests)} files of unit tests passed with pages of {pages // 1024} KiB")
    if not (site / "torch").exists():
        install(site, TORCH)
    job, logs = Path(__file__).with_name("two_ranks.py"), folder / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    rehearse = ("-m", "tracehook", "rehearse", "--devices", "2", "--log", logs, "--", python, job)
    run(python, *rehearse, cwd=folder)
    run(python, "-m", "tracehook", "audit", logs, cwd=folder)
    tell("two ranks of torch's wheel for aarch64 reduced memory of a scope in rehearsal, and the audit is clean")


if __name__ == "__main__":
    main()
