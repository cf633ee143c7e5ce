"""Content of a `workload.yaml` that runs a Flower app instead of a training of Laggard's own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from pydantic import Field

from laggard.core.errors import Problem
from laggard.core.files.input_files import expand_home, read_bounded
from laggard.core.hosts import Host
from laggard.core.yaml_source import YamlSource, YamlValue
from laggard.workloads.specification.section import Section

APP_FILE = "pyproject.toml"
"""File that makes a folder a Flower app."""

_SOURCE_SUFFIXES = {".py", ".toml", ".md", ".txt"}
_MOST_SOURCES, _MOST_SOURCE_BYTES = 200, 1 << 20


class FlowerApp(Section):
    """Flower app and its environment, as `flwr run` would start it.

    Flower: D. J. Beutel et al., "Flower: a friendly federated learning research framework", 2020.
    """

    flower: str = Field(
        min_length=1,
        max_length=4096,
        description="folder of a Flower app, which has a pyproject.toml",
    )
    python: str = Field(
        min_length=1,
        max_length=4096,
        description=(
            "Python of the environment that has flwr and the packages of the app, such as"
            " venv/bin/python"
        ),
    )

    @property
    def folder(self) -> Path:
        """Folder of the app."""
        return Path(self.flower)

    def located(self, scenario_folder: Path) -> FlowerApp:
        """Return the app with its paths resolved against the scenario's folder.

        The Python of a virtual environment is a link, which is not followed: its own folder says
        which packages it has.
        """
        app = (scenario_folder / expand_home(self.flower)).resolve()
        python = (scenario_folder / expand_home(self.python)).absolute()
        return self.model_copy(update={"flower": str(app), "python": str(python)})

    @property
    def untrained_reason(self) -> str:
        """Return why its hosts have no ranks."""
        return "workload.yaml runs a Flower app, whose steps are its own"

    def find_problems(
        self, hosts: Sequence[Host], source: YamlSource, _folder: Path
    ) -> Iterator[Problem]:
        """Yield what keeps the located app from being run.

        Args:
            hosts: all hosts.
            source: the parsed `workload.yaml`.
        """
        if not (self.folder / APP_FILE).is_file():
            yield source.locate_problem(
                ("flower",),
                f"{self.flower} has no {APP_FILE}, so it is no Flower app",
                "give a folder that `flwr new` created",
            )
        if len(hosts) < 2:
            yield source.locate_problem(
                ("flower",),
                "a Flower app needs a host for its server and another for a client",
                "add hosts to layers_services.yaml",
            )

    def read_files(self, scenario_folder: Path) -> Mapping[str, bytes]:
        """Read the sources of a located app inside the scenario's folder, by their paths in it.

        There are none for an app elsewhere, or for one that is too large to be kept with every run.
        """
        root = scenario_folder.resolve()
        if not self.folder.is_relative_to(root) or self.folder == root:
            return {}
        sources = tuple(islice(self._list_sources(), _MOST_SOURCES + 1))
        if (
            len(sources) > _MOST_SOURCES
            or sum(path.stat().st_size for path in sources) > _MOST_SOURCE_BYTES
        ):
            return {}
        return {str(path.relative_to(root)): read_bounded(path) for path in sources}

    def _list_sources(self) -> Iterator[Path]:
        for parent, folders, names in os.walk(self.folder):
            here = Path(parent)
            folders[:] = sorted(
                each
                for each in folders
                if not each.startswith((".", "__")) and not (here / each / "pyvenv.cfg").exists()
            )
            for name in sorted(names):
                path = here / name
                is_source = path.suffix in _SOURCE_SUFFIXES or name.startswith("LICENSE")
                if is_source and path.is_file() and not path.is_symlink():
                    yield path


def names_flower_app(content: YamlValue) -> bool:
    """Return whether the content of a `workload.yaml` is meant to be a Flower app."""
    return isinstance(content, dict) and "flower" in content
