"""Which wheels a node needs, how pip is asked for them, and that they are fetched once."""

from __future__ import annotations

import ast
import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import laggard
from laggard.core.errors import DeploymentError, LaggardError, PrerequisiteError
from laggard.layers_services.environment.own_wheel import build_own_wheel, pack_wheel
from laggard.layers_services.environment.resolve import (
    WORKER_DISTRIBUTIONS,
    resolve_requirements,
)
from laggard.layers_services.environment.wheel_plan import (
    Accelerator,
    Platform,
    download_error,
    pin_requirement,
    pip_command,
    platform_tags,
)
from laggard.layers_services.environment.wheels import default_cache, wheel_set
from tests.layers_services.tiny_wheels import write_wheel

REPOSITORY = Path(__file__).resolve().parents[2]
X86 = Platform((3, 11), "x86_64", (2, 36))


@pytest.mark.parametrize(
    ("architecture", "glibc", "first", "last", "count"),
    [
        ("x86_64", (2, 36), "manylinux_2_36_x86_64", "linux_x86_64", 36),
        ("x86_64", (2, 17), "manylinux_2_17_x86_64", "linux_x86_64", 17),
        ("aarch64", (2, 31), "manylinux_2_31_aarch64", "linux_aarch64", 17),
        ("aarch64", (2, 17), "manylinux_2_17_aarch64", "linux_aarch64", 3),
    ],
)
def test_platform_tags(
    architecture: str, glibc: tuple[int, int], first: str, last: str, count: int
) -> None:
    tags = platform_tags(Platform((3, 11), architecture, glibc))
    assert (tags[0], tags[-1], len(tags)) == (first, last, count)
    assert f"manylinux2014_{architecture}" in tags
    assert (
        tags.index(f"manylinux2014_{architecture}")
        == tags.index(f"manylinux_2_17_{architecture}") + 1
    )


def test_platform_tags_are_those_of_pip_for_this_machine() -> None:
    """Against what pip itself says here, whichever machine this is."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "debug", "--verbose"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    own = [tag.rpartition("-")[2] for tag in said if tag.startswith("cp3") and "linux" in tag]
    newest = next(tag for tag in own if tag.startswith("manylinux_"))
    _, major, minor, architecture = newest.split("_", 3)
    assert set(platform_tags(Platform((3, 11), architecture, (int(major), int(minor))))) == set(own)


@pytest.mark.parametrize(
    ("name", "version", "accelerator", "expected"),
    [
        ("numpy", "2.4.6", "cpu", "numpy==2.4.6"),
        ("torch", "2.13.0", "cpu", "torch==2.13.0+cpu"),
        ("torch", "2.13.0+cpu", "cpu", "torch==2.13.0+cpu"),
        ("torch", "2.13.0+cu130", "cpu", "torch==2.13.0+cpu"),
        ("torch", "2.13.0+cpu", "cuda", "torch===2.13.0"),
    ],
)
def test_pinned(name: str, version: str, accelerator: Accelerator, expected: str) -> None:
    assert pin_requirement(name, version, accelerator) == expected


def test_pips_command() -> None:
    command = pip_command(
        ["psutil==7.2.2"],
        Platform((3, 12), "aarch64", (2, 17)),
        Path("/cache/x"),
        ["https://index"],
    )
    assert command[:4] == (sys.executable, "-m", "pip", "download")
    assert "--no-deps" in command
    assert "--only-binary=:all:" in command
    assert command[command.index("--python-version") + 1] == "3.12"
    assert [command[i + 1] for i, word in enumerate(command) if word == "--platform"] == [
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
        "linux_aarch64",
    ]
    assert command[command.index("--extra-index-url") + 1] == "https://index"
    assert command[-3:] == ("--dest", "/cache/x", "psutil==7.2.2")


NOT_FOUND = (
    "ERROR: Could not find a version that satisfies the requirement {0} (from versions: {1})\n"
    "ERROR: No matching distribution found for {0}\n"
)
NO_NETWORK = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('Failed to"
    " establish a new connection: [Errno -3] Temporary failure in name resolution')':"
    " /simple/psutil/\n"
)


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (
            NOT_FOUND.format("psutil==9", "5.1, 7.2.2"),
            DeploymentError,
            (
                "psutil==9: no wheel exists for Python 3.11, x86_64, glibc 2.36, cpu; newest"
                " available version: 7.2.2; "
            ),
        ),
        (
            NOT_FOUND.format("nosuch==9", "none"),
            DeploymentError,
            (
                "nosuch==9: no wheel exists for Python 3.11, x86_64, glibc 2.36, cpu; newest"
                " available version: none; "
            ),
        ),
        (
            NO_NETWORK + NOT_FOUND.format("psutil==9", "none"),
            DeploymentError,
            (
                "psutil==9: the package index cannot be reached (Python 3.11, x86_64, glibc 2.36,"
                " cpu); "
            ),
        ),
        (
            "/usr/bin/python3: No module named pip\n",
            PrerequisiteError,
            "pip is not installed here",
        ),
        (
            "ERROR: something\nERROR: else\n",
            DeploymentError,
            "a==1, b==2: pip could not download it for Python 3.11",
        ),
    ],
)
def test_why_a_wheel_was_not_fetched(said: str, kind: type[LaggardError], message: str) -> None:
    error = download_error(said, ["a==1", "b==2"], X86)
    assert isinstance(error, kind)
    assert str(error).startswith(message)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which alone pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def list_installed(*roots: str) -> dict[str, metadata.Distribution]:
    """The distributions installed here that the roots need on any platform, with any extra."""
    found: dict[str, metadata.Distribution] = {}
    queue = list(roots)
    while queue:
        name = canonicalize_name(queue.pop())
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        queue += [Requirement(text).name for text in found[name].requires or ()]
    return found


def offer(index: Path, *names: str) -> None:
    """Wheels named as the distributions installed here, with what they need, and that of uv."""
    for name, each in list_installed(*names, "uv").items():
        requires = tuple(each.requires or ())
        write_wheel(index, name.replace("-", "_"), each.version, requires)


def names_of(folder: Path) -> set[str]:
    return {path.name.split("-")[0] for path in folder.rglob("*.whl")}


def test_wheels_are_fetched_once(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    offer(index, "pydantic", "psutil")
    first = wheel_set(X86, ("pydantic", "psutil"), cache)
    assert set(first.versions) == {
        *(
            "annotated-types",
            "laggard",
            "psutil",
            "pydantic",
            "pydantic-core",
            "typing-extensions",
            "typing-inspection",
            "uv",
        ),
    }
    assert first.versions["psutil"] == metadata.version("psutil")
    assert first.size == sum(wheel.path.stat().st_size for wheel in first.files)
    for path in index.glob("*.whl"):
        path.unlink()
    assert wheel_set(X86, ("psutil", "pydantic"), cache) == first


@pytest.mark.long
def test_a_damaged_cache_is_fetched_again(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    offer(index, "psutil")
    first = wheel_set(X86, ("psutil",), cache)
    wheel = next(each.path for each in first.files if each.path.name.startswith("psutil"))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    assert wheel_set(X86, ("psutil",), cache) == first
    wheel.unlink()
    assert wheel_set(X86, ("psutil",), cache) == first


@pytest.mark.long
def test_what_the_downloaded_wheels_need_is_what_counts(index: Path, tmp_path: Path) -> None:
    """PyTorch's CUDA build needs what the build installed here need not; and less of the rest."""
    version = metadata.version("torch").partition("+")[0]
    write_wheel(
        index,
        "torch",
        version,
        ('toolkit[nccl]==13.0; platform_system == "Linux"', "nvidia_nccl_cu13", "psutil"),
    )
    write_wheel(index, "torch", f"{version}+cpu", ("psutil",))
    write_wheel(
        index,
        "toolkit",
        "13.0",
        ('nvidia_nccl_cu13==2.29.*; extra == "nccl"', 'other; extra == "other"'),
    )
    for number in (
        "2.29.7",
        "2.30.0",
    ):  # torch takes any, so the newer one is fetched before the toolkit is known
        write_wheel(index, "nvidia_nccl_cu13", number, tag="py3-none-manylinux2014_x86_64")
    offer(index, "psutil")
    cuda = wheel_set(Platform((3, 11), "x86_64", (2, 36), "cuda"), ("torch",), tmp_path / "cache")
    assert dict(cuda.versions) == {
        "laggard": metadata.version("laggard"),
        "nvidia-nccl-cu13": "2.29.7",
        "psutil": metadata.version("psutil"),
        "toolkit": "13.0",
        "torch": version,
        "uv": metadata.version("uv"),
    }
    cpu = wheel_set(X86, ("torch",), tmp_path / "cache")
    assert cpu.versions["torch"] == f"{version}+cpu"
    assert "nvidia-nccl-cu13" not in cpu.versions
    assert cpu.hash != cuda.hash


def test_what_only_files_are_read_of_comes_without_its_dependencies(index: Path) -> None:
    offer(index, "scikit-learn", "pydantic")
    found = {each.split("==")[0] for each in resolve_requirements(["scikit-learn"], X86)}
    assert found == {"scikit-learn"}
    found = {
        each.split("==")[0] for each in resolve_requirements(["pydantic", "scikit-learn"], X86)
    }
    assert {"scikit-learn", "pydantic", "pydantic-core"} <= found
    assert "scipy" not in found


def test_markers_count_as_on_the_nodes(index: Path) -> None:
    """A machine of another kind needs other packages than this one."""
    version = metadata.version("psutil")
    needs = (
        'older; python_version < "3.12"',
        'newer; python_version >= "3.12"',
        'board; platform_machine == "aarch64"',
        'other; sys_platform == "win32"',
    )
    write_wheel(index, "psutil", version, needs)
    for name in ("older", "newer", "board", "other"):
        write_wheel(index, name, "1.0")
    boards = Platform((3, 12), "aarch64", (2, 36))
    assert resolve_requirements(["psutil"], X86) == ("older==1.0", f"psutil=={version}")
    assert resolve_requirements(["psutil"], boards) == (
        "board==1.0",
        "newer==1.0",
        f"psutil=={version}",
    )


def test_versions_that_do_not_fit_are_named(index: Path) -> None:
    write_wheel(index, "psutil", "0.1")
    with pytest.raises(DeploymentError, match="no versions of the workers' packages fit Python"):
        resolve_requirements(["psutil"], X86)


@pytest.mark.long
def test_no_wheel_for_the_platform(index: Path, tmp_path: Path) -> None:
    version = metadata.version("psutil")
    offer(index)
    write_wheel(index, "psutil", version, tag="cp36-abi3-manylinux_2_28_x86_64")
    assert "psutil" in wheel_set(X86, ("psutil",), tmp_path / "cache").versions
    old, board = Platform((3, 11), "x86_64", (2, 27)), Platform((3, 11), "aarch64", (2, 36))
    with pytest.raises(DeploymentError) as caught:
        wheel_set(old, ("psutil",), tmp_path / "cache")
    assert str(caught.value).startswith(f"psutil=={version}: no wheel exists for {old}; ")
    with pytest.raises(DeploymentError) as caught:
        wheel_set(board, ("psutil",), tmp_path / "cache")
    # uv knows architectures, but no old C libraries.
    assert f"no versions of the workers' packages fit {board}: " in str(caught.value)
    assert f"psutil=={version}" in str(caught.value)
    assert not list((tmp_path / "cache").glob(".*"))


def test_a_distribution_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="nosuchthing is not installed here"):
        wheel_set(X86, ("nosuchthing",), tmp_path)


def test_the_cache_is_where_the_desktop_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/laggard/wheels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache/laggard/wheels"


def test_laggards_own_wheel_has_its_files(tmp_path: Path) -> None:
    path = build_own_wheel(tmp_path)
    assert build_own_wheel(tmp_path) == path
    package = Path(laggard.__file__).parent
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        assert (
            archive.read("laggard/workloads/worker.py")
            == (package / "workloads/worker.py").read_bytes()
        )
        (info,) = {name.split("/")[0] for name in names} - {"laggard"}
        record = archive.read(f"{info}/RECORD").decode().splitlines()
        listed = {line.split(",")[0]: line.split(",")[1] for line in record}
        assert set(listed) == names
        digest = base64.urlsafe_b64encode(
            hashlib.sha256((package / "core/errors.py").read_bytes()).digest()
        )
        assert listed["laggard/core/errors.py"] == f"sha256={digest.rstrip(b'=').decode()}"
    assert not [name for name in names if "__pycache__" in name]
    assert {"laggard/py.typed", f"{info}/METADATA", f"{info}/WHEEL"} <= names


def test_the_same_files_make_the_same_wheel(tmp_path: Path) -> None:
    package = tmp_path / "one" / "here"
    package.mkdir(parents=True)
    (package / "b.py").write_text("b")
    (package / "a.py").write_text("a")
    first = pack_wheel(package, "1")
    package.rename(tmp_path / "here")
    (tmp_path / "here/a.py").touch()
    assert pack_wheel(tmp_path / "here", "1") == first
    (tmp_path / "here/a.py").write_text("A")
    assert pack_wheel(tmp_path / "here", "1") != first


def _provided() -> set[str]:
    """Top-level modules that the wheel set has; of scikit-learn only files are read."""
    wanted = set(list_installed(*(set(WORKER_DISTRIBUTIONS) - {"scikit-learn"})))
    providers = metadata.packages_distributions()
    return {
        top
        for top, names in providers.items()
        if {str(canonicalize_name(name)) for name in names} & wanted
    }


def _third_party(tops: set[str]) -> set[str]:
    known = set(metadata.packages_distributions())
    return {top for top in tops if top in known} - {"laggard"} - set(sys.stdlib_module_names)


def _imported(tree: ast.AST) -> Iterator[str]:
    """Names that a module imports, in functions too, unless it is for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        yield from _imported(node)


def test_a_node_has_what_ranks_and_their_limiters_import() -> None:
    folders = [
        "src/laggard/core",
        "workloads",
        "network_emulation/compute",
        "network_emulation/dynamics",
    ]
    own = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    own += [
        REPOSITORY / "layers_services" / name
        for name in ("local/launch.py", "local/fork_server.py", "local/forked.py")
    ]
    tops = {
        name.split(".")[0]
        for path in own
        for name in _imported(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert _third_party(tops) >= {"torch", "numpy", "pydantic", "pyarrow", "ruamel"}
    # Two scenarios of the gallery run where their user installed their packages.
    assert _third_party(tops) - _provided() == {"gymnasium", "snntorch"}


def test_a_node_has_what_the_agent_imports() -> None:
    code = "import sys, laggard.remote.agent.main; print(*sys.modules, sep='\\n')"
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    tops = {name.split(".")[0] for name in said.split() if not name.startswith("_")}
    assert "laggard" in tops
    assert _third_party(tops) - _provided() == set()
