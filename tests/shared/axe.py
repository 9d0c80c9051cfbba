"""axe-core, the accessibility checker, from npm."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

VERSION = "4.14.1"
FOLDER = Path.home() / ".cache" / "leval-harness-tests" / f"axe-core-{VERSION}"


@cache
def source() -> str:
    """Return the script, which npm installs on first use."""
    script = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(FOLDER)]
        subprocess.run([*command, f"axe-core@{VERSION}"], check=True, capture_output=True)
    return script.read_text(encoding="utf-8")


def violations(driver: Any) -> list[str]:
    """Return what axe-core finds on the open page, a line for each rule and element."""
    driver.execute_script(source())
    driver.set_script_timeout(120)
    result = driver.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run(document).then(done);"
    )
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for rule in result["violations"]
        for node in rule["nodes"]
    ]
