"""Put the stored numbers into the README and all pages: `python docs/make_numbers.py`. Tests fail while one differs.

`claims/` says which piece of which page comes from which file. A number that is tied to no file fails a test as well,
unless the page's list of exceptions names it: settings, the paper's values, arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import make_certificates
import make_reproduction
from claims import front_door, others, peers, performance, reproduction, selection, zeta
from claims.text import rewrite

ROOT = Path(__file__).parents[1]


class Numbers(NamedTuple):
    """What ties the numbers of a page: its claims, and the pieces whose numbers need none."""

    claims: Callable[[], list[str]] = list
    allowed: Sequence[str] = ()


PAGES = {
    "docs/evidence/index.md": Numbers(),
    "docs/reference/command-line.md": Numbers(),
    "docs/reference/api.md": Numbers(),
    "docs/reference/index.md": Numbers(),
    "docs/guides/index.md": Numbers(),
    "docs/start/index.md": Numbers(),
    "CONTRIBUTING.md": Numbers(others.contributing),
    "README.md": Numbers(zeta.readme_claims, ["Apache-2.0"]),
    "docs/guides/certificates.md": Numbers(others.certificates, others.CERTIFICATES_ALLOWED),
    "docs/guides/choosing-k-and-zeta.md": Numbers(zeta.claims, zeta.ALLOWED),
    "docs/guides/data.md": Numbers(others.data_page),
    "docs/guides/distributed.md": Numbers(allowed=others.DISTRIBUTED_ALLOWED),
    "docs/guides/dynamics-and-objectives.md": Numbers(),
    "docs/guides/estimators_and_tables.md": Numbers(),
    "docs/guides/faq.md": Numbers(),
    "docs/guides/feature-selection.md": Numbers(selection.claims, selection.ALLOWED),
    "docs/guides/folds_and_tasks.md": Numbers(others.folds_and_tasks),
    "docs/guides/hyperparameters.md": Numbers(),
    "docs/index.md": Numbers(allowed=others.INDEX_ALLOWED),
    "docs/evidence/method.md": Numbers(allowed=others.METHOD_ALLOWED),
    "docs/guides/monitor.md": Numbers(others.monitor, others.MONITOR_ALLOWED),
    "docs/evidence/performance.md": Numbers(lambda: [*performance.claims(), *peers.claims()], performance.ALLOWED),
    "docs/guides/privacy.md": Numbers(others.privacy_page, others.PRIVACY_ALLOWED),
    "docs/evidence/reproduction.md": Numbers(reproduction.claims, reproduction.ALLOWED),
    "docs/guides/runs.md": Numbers(others.runs),
    "docs/guides/sweeps.md": Numbers(),
    "docs/guides/tune.md": Numbers(front_door.claims),
}


def main() -> None:
    """Rewrite all pages."""
    for made in (make_certificates, make_reproduction):
        made.PAGE.write_text(made.page(), encoding="utf-8")
    for name, numbers in PAGES.items():
        page = ROOT / name
        page.write_text(rewrite(page.read_text(encoding="utf-8"), numbers.claims()), encoding="utf-8")


if __name__ == "__main__":
    main()
