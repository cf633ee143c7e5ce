"""Versions of what can change a result."""

from __future__ import annotations

import platform
from importlib import metadata

from laggard.core.provenance.fingerprint import list_versions


def test_installed_packages_and_those_of_modules_have_versions() -> None:
    versions = list_versions(["numpy", "not-installed"], ["sklearn.datasets", "no.such.module"])
    versions.pop("glibc", None)
    assert versions == {
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "scikit-learn": metadata.version("scikit-learn"),
    }
