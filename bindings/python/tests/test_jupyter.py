"""`elbowroom jupyter install`: a kernel with a budget that starts, computes, is interrupted and ends."""

import json
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("ipykernel")
manager = pytest.importorskip("jupyter_client.manager")
kernelspec = pytest.importorskip("jupyter_client.kernelspec")


@pytest.fixture
def jupyter(tmp_path, monkeypatch):
    """The command, with a data directory of its own."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "run"))

    def run(*words, status=0):
        command = [sys.executable, "-m", "elbowroom", "jupyter", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == status, done.stderr
        return done.stdout

    return run


def value_of(client, text, meanwhile=None, bound=60):
    """Runs a cell; returns what it has printed, and the name of its exception or None."""
    said, failed = [], None
    asked = client.execute(text)
    if meanwhile is not None:
        time.sleep(0.5)
        meanwhile()
    end = time.monotonic() + bound
    while True:
        message = client.get_iopub_msg(timeout=max(end - time.monotonic(), 0.1))
        if message["parent_header"].get("msg_id") != asked:
            continue
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "stream":
            said.append(content["text"])
        elif kind == "error":
            failed = content["ename"]
        elif kind == "status" and content["execution_state"] == "idle":
            return "".join(said), failed


def test_a_kernel_computes_in_its_budget_and_is_interrupted_and_ends(jupyter):
    jupyter(
        "install", "--memory", "64M", "--name", "Small", "--python", sys.executable, "--", "--swap", "512M"
    )
    assert "small" in kernelspec.KernelSpecManager().find_kernel_specs()
    assert "64 MiB" in jupyter("list")
    kernel = manager.KernelManager(kernel_name="small")
    kernel.start_kernel()
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        said, failed = value_of(client, "import os, numpy as np; print(os.getpid())")
        # The command has become the kernel: signals reach it.
        assert failed is None and int(said) == kernel.provisioner.pid
        most = "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
        before = int(value_of(client, most)[0]) >> 10
        said, failed = value_of(
            client, "a = np.zeros(200 << 20, 'u1'); a[:] = 3; print(int(a.sum(dtype='u8')))"
        )
        assert (failed, said) == (None, f"{600 << 20}\n")
        assert int(value_of(client, most)[0]) >> 10 < before + 64 + 40
        text = "import time\nfor _ in range(600): time.sleep(0.1)"
        assert value_of(client, text, kernel.interrupt_kernel) == ("", "KeyboardInterrupt")
        said, failed = value_of(client, "print(int(a[0]))")
        assert (failed, said) == (None, "3\n")
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=False)
    assert not kernel.is_alive()
    jupyter("remove", "small")
    assert "small" not in kernelspec.KernelSpecManager().find_kernel_specs()


def test_what_others_have_written_stays(jupyter, tmp_path):
    directory = tmp_path / "data" / "kernels" / "elbowroom"
    directory.mkdir(parents=True)
    other = json.dumps({"argv": ["python3"], "display_name": "mine", "language": "python"})
    (directory / "kernel.json").write_text(other)
    jupyter("install", "--memory", "64M", "--python", sys.executable, status=1)
    jupyter("remove", status=1)
    assert (directory / "kernel.json").read_text() == other
    assert jupyter("list").startswith("There are none")
    assert os.listdir(directory) == ["kernel.json"]
