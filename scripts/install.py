"""Makes the virtual environment `.venv` and installs Slipstream and its pinned dependencies into it.

Called by `scripts/setup`, with any Python >= 3.11 and nothing but the standard library. Every step can be repeated,
so a run that was interrupted goes on where it stopped. Unpacking is work for one core; compiling, Slipstream's kernels
by g++ and everybody's modules to byte code, is done beside it on another.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
BUILD = ROOT / "build"
LOG = BUILD / "setup.log"
OWN_LOG = BUILD / "setup-slipstream.log"  # of what is done beside the rest
NATIVE = (ROOT / "kernels" / "cpu", ROOT / "kv_transfer" / "native")
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
CUDA_BUILD = "pip's own indexes, built for CUDA"  # runs without a GPU, too
NETWORK_TROUBLE = re.compile(
    r"timed? ?out|connection (reset|refused|aborted|broken)|temporary failure|name resolution|incompleteread"
    r"|max retries|remotedisconnected|5\d\d server error|too many requests|hashes? .*do not match",
    re.IGNORECASE,
)
RETRY_AFTER_S = (3.0, 15.0)


class SetupFailed(Exception):  # noqa: N818 - reads as the sentence it carries
    """One sentence for the person at the terminal."""


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def environment() -> dict[str, str]:
    """Without PYTHONPATH and friends, so that only the virtual environment counts."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def run(command: Sequence[str | Path], log: Path = LOG) -> str:
    """Runs a command with its output in the log. Returns what it printed; raises CalledProcessError."""
    words = list(map(str, command))
    with log.open("a", encoding="utf-8") as out:
        out.write(f"\n$ {' '.join(words)}\n")
        out.flush()
        begin = out.tell()
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(), check=False)
    with log.open("rb") as log_bytes:
        log_bytes.seek(begin)
        output = log_bytes.read().decode("utf-8", "replace")
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, "pip", output)
    return output


def pip_install(*arguments: str | Path, log: Path = LOG) -> None:
    """`pip install`, again after a pause when the network is at fault. Raises CalledProcessError."""
    command = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-compile", *arguments]
    for pause_s in (*RETRY_AFTER_S, None):
        try:
            run(command, log)
            return
        except subprocess.CalledProcessError as error:
            if pause_s is None or not NETWORK_TROUBLE.search(error.output):
                raise
            say(f"the network failed; again in {pause_s:.0f} s")
            time.sleep(pause_s)


def reason(error: subprocess.CalledProcessError) -> str:
    """The line of pip's output that says why."""
    lines = [line.strip() for line in str(error.output).splitlines() if line.strip()]
    # Where the index cannot be reached, pip's last word is that it has found nothing there.
    if any("Retrying (Retry(total=0" in line for line in lines):
        return "cannot be reached"
    errors = [line for line in lines if line.upper().startswith("ERROR")]
    return (errors or lines or ["no output"])[-1]


def make_venv() -> None:
    if PYTHON.exists():
        try:
            run([PYTHON, "-m", "pip", "--version"])
            return
        except (subprocess.CalledProcessError, OSError):
            say("the virtual environment in .venv is broken; making it anew")
    else:
        say(f"making a virtual environment in .venv with Python {sys.version.split()[0]}")
    try:
        run([sys.executable, "-m", "venv", "--clear", VENV])
    except subprocess.CalledProcessError as error:
        raise SetupFailed(f"the virtual environment could not be made: {reason(error)}") from error


def has_nvidia_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    done = subprocess.run([tool, "-L"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0 and b"GPU" in done.stdout


def pinned(name: str) -> str:
    match = re.search(rf"^{name}==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if match is None:
        raise SetupFailed(f"constraints.txt pins no {name}")
    return str(match[1])


def installed(code: str) -> str:
    """What an expression prints in the virtual environment; empty if it fails there."""
    done = subprocess.run([PYTHON, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def install_torch(gpu: bool) -> None:
    version = pinned("torch")
    have = installed("from importlib.metadata import version; print(version('torch'))")
    if have.split("+")[0] == version and (
        gpu or sys.platform != "linux" or have.endswith("+cpu") or installed("import torch; print(torch.__version__)")
    ):
        return
    if gpu or sys.platform != "linux":
        say(f"installing PyTorch {version}")
        attempts: dict[str, list[str | Path]] = {
            "pip's own indexes": [f"torch=={version}", "-c", ROOT / "constraints.txt"]
        }
    else:
        # The wheel of that name on PyPI is the CUDA build, with gigabytes of libraries of no use here. --no-deps: what
        # torch needs comes with the other dependencies, from the ordinary indexes.
        say(f"installing PyTorch {version} for the CPU (no NVIDIA GPU found)")
        cpu: list[str | Path] = ["--no-deps", f"torch=={version}+cpu"]
        attempts = {
            "pip's own indexes": cpu,
            CPU_WHEELS: [*cpu, "--index-url", CPU_WHEELS],
            CUDA_BUILD: [f"torch=={version}", "-c", ROOT / "constraints.txt"],
        }
    failures = []
    for source, arguments in attempts.items():
        if source == CUDA_BUILD:
            say("there is no build of it for the CPU; installing the one for CUDA, which takes gigabytes")
        try:
            pip_install(*arguments)
            return
        except subprocess.CalledProcessError as error:
            failures.append(f"{source}: {reason(error)}")
    raise SetupFailed(f"PyTorch {version} could not be installed; from {'; from '.join(failures)}")


def build_requirements() -> list[str]:
    requirements: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return requirements


def dependencies(dev: bool, gpu: bool) -> list[str]:
    """The requirements of pyproject.toml with the extras that fit this machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    wanted: list[str] = list(project["project"]["dependencies"])
    cuda = installed("import torch; print((torch.version.cuda or '').split('.')[0])")
    wanted += extras[f"cu{cuda}" if f"cu{cuda}" in extras else "cpu"] + extras["kserve"]
    if dev:
        wanted += extras["dev"] + ([] if cuda else extras["triton"])
    return wanted


def native_libraries() -> list[Path]:
    return [library for folder in NATIVE for library in folder.glob("*.so")]


def has_native() -> bool:
    return all(any(folder.glob("*.so")) for folder in NATIVE)


def install_slipstream() -> None:
    try:
        # What an earlier version has built must not pass for this one's, should the compiler be gone.
        for library in native_libraries():
            library.unlink()
        # setuptools is there already: no second download into an isolated build environment.
        pip_install("--no-deps", "--no-build-isolation", "-e", ROOT, log=OWN_LOG)
    except subprocess.CalledProcessError as error:
        raise SetupFailed(f"Slipstream itself could not be installed: {reason(error)}; see {OWN_LOG}") from error


def compile_modules(package: str = "") -> None:
    """Compiles what pip has unpacked to byte code, on all cores. What does not compile is its package's affair."""
    folders = installed(
        "import sysconfig; print(*{sysconfig.get_path(kind) for kind in ('purelib', 'platlib')}, sep=',')"
    )
    if not folders:
        return
    command = [PYTHON, "-m", "compileall", "-q", "-q", "-j", "0", *(Path(f) / package for f in folders.split(","))]
    subprocess.run(command, stdin=subprocess.DEVNULL, env=environment(), check=False)


def install(dev: bool) -> None:
    gpu = has_nvidia_gpu()
    make_venv()
    with ThreadPoolExecutor(max_workers=1) as beside:
        try:
            install_packages(dev, gpu, beside)
        except BaseException:
            beside.shutdown(wait=False, cancel_futures=True)
            raise
    compile_modules()
    if not has_native():
        say(f"no native CPU kernels (they take g++ on 64-bit x86 Linux; see {OWN_LOG}): slower forms will serve")


def install_packages(dev: bool, gpu: bool, beside: Executor) -> None:
    try:
        pip_install("-c", ROOT / "constraints.txt", *build_requirements())
    except subprocess.CalledProcessError as error:
        raise SetupFailed(f"the dependencies could not be installed: {reason(error)}") from error
    own = beside.submit(install_slipstream)
    install_torch(gpu)
    if own.done():
        own.result()  # if it failed, report it without waiting for the rest
    beside.submit(compile_modules, "torch")
    wanted = dependencies(dev, gpu)
    say(f"installing {len(wanted)} packages and what they need" + (", tests included" if dev else ""))
    try:
        pip_install("-c", ROOT / "constraints.txt", *wanted)
    except subprocess.CalledProcessError as error:
        raise SetupFailed(f"the dependencies could not be installed: {reason(error)}") from error
    own.result()


def main() -> int:
    want, inputs = sys.argv[1:]
    BUILD.mkdir(exist_ok=True)
    # Lock and log lie outside .venv, which `venv --clear` empties. Two set-ups at once take turns.
    with (BUILD / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up in this folder")
            fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = VENV / ".slipstream-setup"
        contents = f"{inputs}\n{want}\n{ROOT}\n"
        if stamp.exists() and stamp.read_text().startswith(contents):
            return 0
        stamp.unlink(missing_ok=True)
        begin = time.monotonic()
        LOG.write_text("")
        OWN_LOG.write_text("")
        try:
            install(dev=want == "dev")
        except SetupFailed as error:
            print(f"setup: {error}\nsetup: the full log is in {LOG}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("setup: interrupted; run it again to go on", file=sys.stderr)
            return 130
        native = "built" if has_native() else f"not built: {shutil.which('g++') or 'none'}"
        stamp.write_text(f"{contents}{native}\n")
        say(f"done in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
