"""Build native libraries into wheels; everything else is in pyproject.toml.

With a compiler, a wheel contains the native libraries and is specific to this platform. An editable installation builds
nothing; libraries are then built at first use.
"""

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


class LibraryDistribution(Distribution):
    """A distribution that is specific to this platform if libraries are built."""

    def has_ext_modules(self) -> bool:
        return bool(building.wheel_variants())


class BuildLibraries(build_py):
    """Build the package, with its libraries next to their sources."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            building.build_for_wheel(Path(self.build_lib) / NATIVE / "built")


class LibraryWheel(bdist_wheel):
    """A wheel with libraries for this platform, but for any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if not self.root_is_pure else (python, abi, platform)


setup(distclass=LibraryDistribution, cmdclass={"build_py": BuildLibraries, "bdist_wheel": LibraryWheel})
