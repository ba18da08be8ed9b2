"""Put the stored numbers into the README and all pages: `python docs/make_numbers.py`. Tests fail while one differs.

`claims/` says which piece of which page comes from which file. A number that is tied to no file fails a test as well,
unless the page's list of exceptions names it: settings, the paper's values, arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import make_certificates
import make_decays
import make_reproduction
from claims import decays, front_door, others, peers, performance, reproduction, selection, weights, zeta
from claims.text import rewrite

ROOT = Path(__file__).parents[1]
BUILT = {"_build", "generated", "gallery"}  # folders that a build writes
BENCHMARKS = "benchmarks/README.md"
CERTIFICATES = "docs/evidence/certificates.md"
DECAYS = "docs/evidence/decays.md"
GAINS = "docs/evidence/gains.md"
PEERS = "docs/evidence/peers.md"
PERFORMANCE = "docs/evidence/performance.md"
REPRODUCTION = "docs/evidence/reproduction.md"


class Numbers(NamedTuple):
    """The numbers of one or more pages: their claims, and the pieces whose numbers need none.

    A claim stands on exactly one of the pages, so that a section may move from one to another.
    """

    pages: Sequence[str]
    claims: Callable[[], list[str]] = list
    allowed: Sequence[str] = ()


NUMBERS = [
    Numbers(["CHANGELOG.md"], allowed=["below 1 MB"]),  # the bar of a test
    Numbers(["CONTRIBUTING.md"], others.contributing),
    Numbers(["README.md"], zeta.readme_claims, ["Apache-2.0"]),
    Numbers(["docs/guides/certificates.md", CERTIFICATES], others.certificates, others.CERTIFICATES_ALLOWED),
    Numbers(["docs/guides/choosing-k-and-zeta.md", GAINS, PERFORMANCE, REPRODUCTION], zeta.claims, zeta.ALLOWED),
    Numbers(["docs/guides/data.md"], others.data_page),
    Numbers(["docs/guides/distributed.md"], allowed=others.DISTRIBUTED_ALLOWED),
    Numbers(["docs/guides/feature-selection.md", "docs/evidence/selection.md"], selection.claims, selection.ALLOWED),
    Numbers([GAINS, PERFORMANCE], others.folds_and_tasks),
    Numbers([GAINS], front_door.claims, front_door.ALLOWED),
    Numbers(["docs/guides/monitor.md", GAINS], others.monitor, others.MONITOR_ALLOWED),
    Numbers([DECAYS], decays.claims, decays.ALLOWED),
    Numbers([DECAYS], weights.claims, weights.ALLOWED),
    Numbers(["docs/evidence/method.md"], decays.method, [*others.METHOD_ALLOWED, *decays.METHOD_ALLOWED]),
    Numbers(["docs/evidence/method.md"], weights.method),
    Numbers(["docs/evidence/method.md"], reproduction.method),
    Numbers([PERFORMANCE, PEERS, "docs/guides/engines.md", BENCHMARKS], performance.claims, performance.ALLOWED),
    Numbers([PEERS], peers.claims),
    Numbers(["docs/guides/privacy.md"], others.privacy_page, others.PRIVACY_ALLOWED),
    Numbers([REPRODUCTION, "results/weight-decay/README.md"], reproduction.claims, reproduction.ALLOWED),
    Numbers([BENCHMARKS], others.runs),
]


def pages() -> list[str]:
    """Return every page whose numbers are checked: the README and its like, and the pages of the site."""
    site = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    outside = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        BENCHMARKS,
        "results/weight-decay/README.md",
    ]
    return outside + [page for page in site if not BUILT & set(Path(page).parts)]


def claims_of(page: str) -> list[str]:
    """Return the claims that may stand on a page."""
    return [claim for numbers in NUMBERS if page in numbers.pages for claim in numbers.claims()]


def allowed_on(page: str) -> list[str]:
    """Return the pieces of a page whose numbers need no claim."""
    return [piece for numbers in NUMBERS if page in numbers.pages for piece in numbers.allowed]


def main() -> None:
    """Rewrite all pages."""
    for made in (make_certificates, make_decays, make_reproduction):
        made.PAGE.write_text(made.page(), encoding="utf-8")
    for name in pages():
        page = ROOT / name
        page.write_text(rewrite(page.read_text(encoding="utf-8"), claims_of(name)), encoding="utf-8")


if __name__ == "__main__":
    main()
