"""The style sheet of all pages. Colors follow the reader's choice of a light or a dark screen.

On a narrow screen each row of a table becomes a list of "title: value", so that no page scrolls sideways.
"""

from __future__ import annotations

from pactune.drawing import COLORS, GRID, INK

__all__ = ["DARK_COLORS", "STYLE"]

# The lines on a dark page: the same hues as `COLORS`, lighter where they would be hard to see.
DARK_COLORS = ("#f07b28", "#4ba3e3", "#2fc49a", "#dd9cc1", "#9aa4b0", "#f2b632", "#8fd0f5")


def _lines(colors: tuple[str, ...]) -> str:
    return " ".join(f"--line-{number}: {color};" for number, color in enumerate(colors))


STYLE = f"""
:root {{ color-scheme: light dark; --ink: {INK}; --page: #ffffff; --quiet: #59636f; --rule: #d8dee6; --grid: {GRID};
  {_lines(COLORS)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6eaf0; --page: #14181f; --quiet: #a0abb8; --rule: #38414d;
  --grid: #2a313b; {_lines(DARK_COLORS)} }} }}
body {{ font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }}
h1 {{ font-size: 1.7rem; line-height: 1.25; }} h2 {{ font-size: 1.2rem; margin-top: 2.4rem; }} p {{ max-width: 48rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
td, th {{ padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }}
th {{ text-align: left; }} td.number {{ font-variant-numeric: tabular-nums; white-space: nowrap; }}
table.wide {{ font-size: .82rem; }} table.wide td, table.wide th {{ padding-right: .6rem; }}
table.pairs td:first-child {{ white-space: nowrap; }}
details td {{ overflow-wrap: anywhere; }} summary {{ cursor: pointer; color: var(--quiet); margin: .6rem 0; }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(27rem, 100%), 1fr)); gap: 1.2rem; }}
figure {{ margin: 0; min-width: 0; max-width: 36rem; }} figcaption {{ font-weight: 600; margin-bottom: .3rem; }}
svg {{ display: block; width: 100%; height: auto; stroke-linejoin: round; }}
footer {{ color: var(--quiet); font-size: .85rem; margin-top: 3rem; }}
@media (max-width: 44rem) {{
  table, tbody, tr, td {{ display: block; }} thead {{ display: none; }}
  table.wide {{ font-size: inherit; }} tr {{ border-bottom: 1px solid var(--rule); padding: .5rem 0; }}
  td, table.wide td {{ border: 0; padding: .1rem 0; display: flex; gap: 1rem; justify-content: space-between;
    overflow-wrap: anywhere; text-align: right; }}
  td::before {{ content: attr(data-title); color: var(--quiet); text-align: left; flex: 0 0 40%; }}
  td[data-title=""]::before, td:first-child:not(.number)::before {{ display: none; }}
  td:empty, table.wide td:empty {{ display: none; }}
  td:first-child, table.pairs td:first-child {{ font-weight: 600; white-space: normal; text-align: left; }}
  td.number {{ white-space: normal; }}
}}
"""
