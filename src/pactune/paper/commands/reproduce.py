"""`pactune reproduce ITEM`: the paper's figures and tables, one command each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from pactune.paper.commands import weight_decay
from pactune.paper.commands.certificate import certificate
from pactune.paper.commands.freedman import freedman, freedman_null
from pactune.report.printing import OutputFormat, print_result

__all__ = ["ITEMS", "Item", "app"]


@dataclass(frozen=True)
class Item:
    """One line of `pactune reproduce --list`.

    Attributes:
        name: the command.
        shows: the figures of the paper that it redoes.
        cost: the time of the full form on two cores.
        quick_cost: the time of `--quick`.
    """

    name: str
    shows: str
    cost: str
    quick_cost: str


# A new study adds a row here and a command of the same name below.
ITEMS = (
    Item(
        "freedman",
        "section 4.1, two true predictors: test MSE against Eq. 1, Eq. 5 and AIC; validation R²; ablation β × ζ",
        "10 min",
        "30 s",
    ),
    Item("freedman-null", "the same with no true predictor", "10 min", "30 s"),
    Item(
        "certificate",
        "beyond the paper: certified error rates on digits; on MNIST too with --mnist FOLDER (3 min on a GPU)",
        "2 min",
        "20 s",
    ),
    Item(
        "weight-decay",
        "section 4.2, Figures 4.2 and C.5–C.13: test and validation curves of a decay per parameter, 5 starts",
        "30 min",
        "10 s",
    ),
    Item(
        "table",
        "Table C.1: least weight norm against Eq. 5 over draws of the images; the linear rows, 12 draws",
        "2 h",
        "10 s",
    ),
    Item("correlation", "Figures 4.3 and C.14–C.16: generalisation error against the regularizer", "2 h", "10 s"),
    Item("scan", "Figures C.17–C.19: test loss against ζ; shares its runs with correlation", "2 h", "10 s"),
    Item("truncation", "Figure B.1: the regularizer alone, K = 0, 1, W = 10, 100 and full", "2 h", "10 s"),
    Item("restart", "mentioned in appendix C.2: θ_0 set back at every outer step", "1 h", "10 s"),
)

TIMES = "Times are for two CPU cores and a linear classifier; residual networks need a GPU (--device cuda)."

app = typer.Typer(help="Reproduce the paper's figures and tables.", no_args_is_help=False)


@app.callback(invoke_without_command=True)
def _list_items(
    context: typer.Context,
    listed: Annotated[bool, typer.Option("--list", help="Show what can be reproduced and its cost.")] = False,
) -> None:
    if listed:
        from pactune.report.page import Table

        rows = [[item.name, item.cost, item.quick_cost, item.shows] for item in ITEMS]
        table = Table(("item", "time", "--quick", "shows"), rows)
        print_result(OutputFormat.TABLE, None, [("", table)], ["", TIMES])
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


app.command("freedman")(freedman)
app.command("freedman-null")(freedman_null)
app.command("certificate")(certificate)
for _command in weight_decay.COMMANDS:
    app.command(_command.name)(_command.function())
