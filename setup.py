"""Wheels have the native libraries inside where there is a compiler, and are for this platform then; all else is said
in pyproject.toml. An editable installation builds nothing: libraries are built at first use."""

import importlib.util
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = "rnnsearch/ops/native"
spec = importlib.util.spec_from_file_location("building", Path(__file__).parent / "src" / NATIVE / "building.py")
assert spec is not None and spec.loader is not None
building = importlib.util.module_from_spec(spec)
spec.loader.exec_module(building)


class WithLibraries(Distribution):
    """For this platform alone where libraries are built."""

    def has_ext_modules(self) -> bool:
        return bool(building.of_wheel())


class Build(build_py):
    """The package, and its libraries beside their sources."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            building.build_for_wheel(Path(self.build_lib) / NATIVE / "built")


class Wheel(bdist_wheel):
    """Libraries of this platform, but for any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if not self.root_is_pure else (python, abi, platform)


setup(distclass=WithLibraries, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
