"""The native parts, the CPU kernels and the copying of KV pages: each compiled once for AVX-512 and once for AVX2.

Everything else about the package is in pyproject.toml. The libraries have a plain C interface and are loaded with
ctypes (`slipstream.kernels.cpu.native_library`, `slipstream.kv_transfer.memory.row_copy`), so that they fit any Python.
They are optional: where they cannot be built, torch and numpy serve.
"""

from __future__ import annotations

import copy
import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# In a checkout `slipstream/kernels` is a link to `kernels`; in a source distribution it is the folder itself.
FOLDERS = (Path("slipstream/kernels/cpu"), Path("slipstream/kv_transfer/native"))
VARIANTS = {
    "_avx512": [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "bf16", "vbmi")] + ["-mfma", "-mf16c"],
    "_avx2": ["-mavx2", "-mfma", "-mf16c"],
}
# No contraction: a formula that is compiled in two places must round the same way in both.
FLAGS = ["-std=c++17", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-exceptions"]
FLAGS += ["-fno-rtti", "-Wall", "-Wextra"]
# Functions of libstdc++ that are not called stay out. Those that are called are not exported, because other libraries
# would bind to them, and because they would ask for a newer glibc.
LINK = "-Wl,-s,-z,defs,--gc-sections,--exclude-libs,ALL"


class BuildLibraries(build_ext):
    """Compiles file by file on all cores, and names the libraries without Python's version."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or len(os.sched_getaffinity(0))

    def build_extension(self, ext: Extension) -> None:
        """With objects in a folder of its own: several libraries are compiled from the same sources."""
        own = copy.copy(self)
        own.build_temp = os.path.join(self.build_temp, ext.name)
        build_ext.build_extension(own, ext)

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"


class LibraryWheel(bdist_wheel):
    """One wheel for all versions of Python on a platform, and where there are no native libraries, on all platforms."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform_tag = super().get_tag()
        return "py3", "none", platform_tag


def extensions() -> list[Extension]:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return []
    return [extension(folder, variant) for folder in FOLDERS for variant in VARIANTS]


def extension(folder: Path, variant: str) -> Extension:
    return Extension(
        ".".join((*folder.parts, variant)),
        sorted(str(path) for path in folder.glob("*.cpp")),
        depends=sorted(str(path) for path in folder.glob("*.hpp")),
        extra_compile_args=[*FLAGS, *VARIANTS[variant]],
        extra_link_args=["-static-libstdc++", "-static-libgcc", "-pthread", LINK],
        language="c++",
        optional=True,
    )


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildLibraries, "bdist_wheel": LibraryWheel})
