"""Headless Chromium for the page's tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HEIGHT = 900


@contextmanager
def chromium(profile: Path, width: int = 1280, dark: bool = False) -> Iterator[Any]:
    """A driver with a fresh profile that keeps its console log and asks nobody on the network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
        f"--window-size={width},{HEIGHT}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        show_as(driver, width, dark=dark)
        yield driver
    finally:
        driver.quit()


def show_as(driver: Any, width: int, dark: bool = False) -> None:
    """Show pages on a screen of a width, a phone's below 700, to a reader who likes it light or dark."""
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 700}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
