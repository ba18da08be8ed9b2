"""A page in a real browser: what it logs, and what it draws."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Seen(NamedTuple):
    """What a browser shows.

    Attributes:
        complaints: lines of its console.
        figures: for each figure, the number of lines and points that are drawn.
    """

    complaints: list[str]
    figures: dict[str, int]


@cache
def find_browser() -> str:
    """Return the browser; install Debian's where there is none and it can be, else skip with the reason."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(command, capture_output=True, timeout=300, check=False)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("no Chromium here, and it cannot be installed without root and a package server")
    return found


def open_page(page: Path, profile: Path) -> Seen:
    """Load a page, wait until its scripts have run, and look at it."""
    done = _dump(page, profile, "--enable-logging=stderr", "--v=0")
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    parts = re.split(r'<svg id="(figure-\d+-\d+)"', done.stdout)
    drawn = {name: _ink(text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    return Seen(complaints, drawn)


def width_of(page: Path, profile: Path, *, window: int) -> int:
    """Return the right edge of the rightmost element of a page in a window, or what must be scrolled to if it is more.

    It is more than the window's width if something must be scrolled sideways, be it the page or one of its parts.
    """
    reach = "e.getBoundingClientRect().right + ('offsetWidth' in e ? e.scrollWidth - e.clientWidth : 0)"
    return int(
        look_at(page, profile, f"Math.round(Math.max(...[...d.querySelectorAll('*')].map(e => {reach})))", window)
    )


def look_at(page: Path, profile: Path, expression: str, window: int, *flags: str) -> str:
    """Return the value of a JavaScript expression, in which `d` is the document of a page in a window.

    Chromium makes no window below 500 pixels, so a frame is the window.
    """
    frame = page.with_name("frame.html")
    frame.write_text(
        f'<iframe id="frame" src="{page.name}" width="{window}" height="900" style="border: 0"></iframe>'
        "<script>frame.onload = () => setTimeout(() => { const d = frame.contentDocument;"
        f"document.title = 'found ' + ({expression}) }}, 500)</script>"
    )
    done = _dump(frame, profile, "--allow-file-access-from-files", *flags)
    found = re.search(r"<title>found (.*?)</title>", done.stdout)
    assert found is not None
    return found[1]


def _dump(page: Path, profile: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Load a page and return its document after its scripts have run."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--window-size=1250,4000"]
    flags += ["--virtual-time-budget=10000", "--dump-dom", *more]
    command = [find_browser(), *flags, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def _ink(svg: str) -> int:
    """Count the lines and points of a figure in a color of the palette, those of its legend included."""
    figure = svg.partition("</svg>")[0]
    return len(re.findall(r"<(?:path|use) [^>]*stroke: var\(--line-\d", figure))
