"""A model of a table in a folder: `table.json` has the columns, the task and the sizes, `model/` the weights.

No code is read from a folder. The module is built from its kind, `"linear"` or `"mlp"`, and the sizes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pactune.cli.encoding import CHECKS, Encoding
from pactune.cli.tables import TableError
from pactune.errors import RunFolderError, SettingError
from pactune.storage.documents import parse_json
from pactune.storage.files import has_content, read_plain, write_atomically
from pactune.storage.schema import SchemaError, anything, finite, listed, need, optional, record, text

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray
    from torch import nn

    from pactune.results.result import Result

__all__ = ["HIDDEN", "TableModel", "load_table_model", "make_mlp", "probability_column"]

KIND, FORMAT = "pactune table model", 1
DOCUMENT, WEIGHTS = "table.json", "model"
HIDDEN = 64  # units of the hidden layer of an MLP


def _label(value: Any, where: str) -> None:
    need(isinstance(value, (str, int, float, bool)), where, "a text or a number", value)


_check = record(
    {
        "task": lambda value, where: need(value in ("classification", "regression"), where, "a task", value),
        "target": text,
        "model": lambda value, where: need(value in ("linear", "mlp"), where, "linear or mlp", value),
        "classes": optional(listed(_label)),
        "target_mean": finite,
        "target_scale": finite,
        **CHECKS,
    }
)


@dataclass(frozen=True)
class TableModel:
    """What `pactune predict` needs besides the weights.

    Attributes:
        task: "classification" or "regression".
        target: the name of the column to predict.
        model: "linear" or "mlp".
        encoding: the columns.
        classes: the labels of a classification.
        target_mean: the mean of the numbers of a regression.
        target_scale: their deviation.
    """

    task: str
    target: str
    model: str
    encoding: Encoding
    classes: list[Any] | None = None
    target_mean: float = 0.0
    target_scale: float = 1.0

    def save(self, folder: Path, result: Result) -> None:
        """Write the weights, then the document, so that a folder with a document is complete."""
        from pactune import __version__

        result.save(folder / WEIGHTS)
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "encoding"}
        document = {"kind": KIND, "format": FORMAT, "pactune": __version__, **fields, **self.encoding.document()}
        written = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
        write_atomically(folder / DOCUMENT, f"{written}\n".encode())

    def module(self) -> nn.Module:
        """Return the module with its first parameters."""
        from pactune.sklearn.modules import make_module

        outputs = len(self.classes) if self.classes is not None else 1
        return make_module(make_mlp if self.model == "mlp" else None, self.encoding.inputs, outputs, seed=0)

    def predict(self, module: nn.Module, table: pd.DataFrame) -> pd.DataFrame:
        """Return a column with the predicted label or number and, for classes, a column with each probability."""
        import pandas as pd
        import torch

        from pactune.sklearn.modules import first_parameter

        inputs = torch.as_tensor(self.encoding.encode(table), device="cpu").to(first_parameter(module))
        with torch.no_grad():
            outputs: NDArray[np.float64] = module(inputs).double().numpy()
        if self.classes is None:
            return pd.DataFrame({self.target: outputs.reshape(-1) * self.target_scale + self.target_mean})
        chances = torch.softmax(torch.as_tensor(outputs, device="cpu"), dim=1).numpy()
        found: dict[str, Any] = {self.target: [self.classes[place] for place in outputs.argmax(1)]}
        return pd.DataFrame(found | {probability_column(c): chances[:, i] for i, c in enumerate(self.classes)})


def probability_column(label: Any) -> str:
    """Return the name of the column with the probabilities of a class."""
    return f"probability {label}"


def make_mlp(inputs: int, outputs: int) -> nn.Module:
    """Return a network with one hidden layer."""
    import torch
    from torch import nn

    place: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
    return nn.Sequential(nn.Linear(inputs, HIDDEN, **place), nn.ReLU(), nn.Linear(HIDDEN, outputs, **place))


def load_table_model(folder: Path) -> tuple[TableModel, nn.Module]:
    """Return the model that `pactune tune` wrote to a folder, and its module with the weights.

    Raises:
        TableError: the folder holds no such model, or one of its files is damaged.
    """
    if not has_content(folder / DOCUMENT):
        raise TableError(f"{folder} holds no model of `pactune tune`: it has no {DOCUMENT}")
    try:
        document = parse_json(read_plain(folder / DOCUMENT))
        _check_kind(document)
        _check(document, DOCUMENT)
    except (RunFolderError, ValueError) as error:
        raise TableError(f"{folder / DOCUMENT} is damaged: {' '.join(str(error).split())}") from error
    names = ("task", "target", "model", "classes", "target_mean", "target_scale")
    found = TableModel(**{name: document[name] for name in names}, encoding=Encoding.of(document))
    return found, _load_module(found, folder / WEIGHTS)


def _load_module(found: TableModel, folder: Path) -> nn.Module:
    from pactune.results.saving import load_result

    try:
        return load_result(folder, model=found.module()).model
    except (RunFolderError, SettingError) as error:
        raise TableError(f"the weights in {folder} cannot be read: {error}") from error


def _check_kind(document: Any) -> None:
    record({"kind": text, "format": anything}, {})(document, DOCUMENT)
    need(document["kind"] == KIND, f"{DOCUMENT}.kind", repr(KIND), document["kind"])
    if document["format"] != FORMAT:
        raise SchemaError(f"its format is {document['format']!r}, and this version of pactune reads {FORMAT}")
    if (document.get("task") == "classification") != isinstance(document.get("classes"), list):
        raise SchemaError("a classification needs classes, and a regression has none")
