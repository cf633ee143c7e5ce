"""Files come home whole over real SSH: what a broken connection left, what is wrong, and what is
not there."""

from __future__ import annotations

import json

import pytest

from tests.remote.remote_scenario import REPOSITORY
from tests.testbed.nodes import lacking
from tests.users import Runner

SCRIPT = f"""
    import hashlib, json, subprocess, sys
    from pathlib import Path
    sys.path.insert(0, {str(REPOSITORY)!r})
    from laggard.core.errors import DeploymentError
    from laggard.core.hosts import Host
    from laggard.layers_services.ssh.fetch_files import RemoteFile, fetch_files
    from laggard.layers_services.local import sandbox
    from laggard.layers_services.ssh.ssh_config import write_ssh_config
    from tests.testbed.nodes import NodeSpec, machines, start_nodes

    def entered():
        here = Path.cwd()
        host = Host("edge.trainer.1.1", "edge", "trainer", 1, 1)
        with start_nodes([NodeSpec("node-1.example.org", "172.30.0.1")], here / "nodes") as nodes:
            config = write_ssh_config(machines([host], nodes), here / "ssh_config")

            def on(command):
                words = ["ssh", "-F", str(config), host.name, command]
                return subprocess.run(words, capture_output=True, text=True, check=True).stdout

            folder = "/var/tmp/some run's [folder]"
            on(f'mkdir -p "{{folder}}/logs"; head -c 3000000 /dev/zero | tr "\\\\0" "x" > "{{folder}}/spans.arrow"; echo hello > "{{folder}}/logs/a b.log"')
            content = {{"spans.arrow": b"x" * 3000000, "logs/a b.log": b"hello\\n"}}
            files = {{name: RemoteFile(len(data), hashlib.sha256(data).hexdigest()) for name, data in content.items()}}
            home = here / "home"
            (home / "logs").mkdir(parents=True)
            (home / "spans.arrow").write_bytes(b"x" * 1000000)  # what a broken connection left
            (home / "logs" / "a b.log").write_bytes(b"HELLO\\n")  # as long, and another
            pauses = []
            fetch_files(host.name, config, "/usr/bin/python3", folder, files, home, pauses.append)
            found = {{"whole": all((home / name).read_bytes() == data for name, data in content.items()), "pauses": pauses}}
            try:
                fetch_files(host.name, config, "/usr/bin/python3", folder, {{"gone": RemoteFile(3, "0" * 64)}}, home, pauses.append)
            except DeploymentError as error:
                found["missing"] = str(error)
            print(json.dumps(found))
        return 0

    sys.exit(sandbox.run_in_sandbox(entered))
"""


@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_files_come_home_whole(own_runner: Runner) -> None:
    result = own_runner.run(SCRIPT, timeout_s=480)
    assert result.stdout, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["whole"]
    assert "1 of 1 files could not be fetched in 5 attempts" in found["missing"]
    assert "/var/tmp/some run's [folder]" in found["missing"]
    assert found["pauses"] == [1.0, 2.0, 4.0, 8.0]
