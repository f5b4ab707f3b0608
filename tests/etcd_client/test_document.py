"""The page about the client shows what the client does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rallypoint import etcd_client
from tests.support.etcd_servers import Certificates
from tests.support.etcd_tools import etcd

PAGE = Path(__file__).resolve().parents[2] / "docs" / "etcd-client.md"


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    expected = "".join(re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL))
    with etcd() as cluster:
        Certificates(tmp_path)
        program = program.replace("127.0.0.1:2379", cluster.endpoint).replace("/etc/etcd", str(tmp_path))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.stderr == ""
    assert done.stdout == expected


def test_every_error_stands_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    errors = [name for name in etcd_client.__all__ if name.endswith("Error")]
    assert [name for name in errors if f"`{name}`" not in text] == []
