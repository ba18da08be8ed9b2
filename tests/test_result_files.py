"""`Result.save` and `load_result`: what comes back, and one clear error for every wrong folder."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.results import saving
from pactune.results.weights import SavedModule
from pactune.storage import files


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def network(width: int = 5) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 3))


def fitted(**data: Any) -> pt.Result:
    model = network()
    hyper = pt.WeightDecay(model)
    given = data or {"train": rows(12, 1), "valid": rows(10, 2)}
    problem = pt.Problem(model, hyper, loss=cross_entropy, **given)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=3, outer=outer, objective=pt.PACBayes(1e-3))
    return tuner.fit(3, test=rows(9, 3), progress=False)


@pytest.fixture(scope="module")
def result() -> pt.Result:
    return fitted()


@pytest.fixture(scope="module")
def folded() -> pt.Result:
    return fitted(data=rows(20, 1), folds=2)


@pytest.fixture
def saved(result: pt.Result, tmp_path: Path) -> Path:
    return result.save(tmp_path / "saved")


def fresh() -> tuple[nn.Module, nn.Module]:
    model = network()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model, pt.WeightDecay(model)


def weights_file(folder: Path) -> Path:
    (found,) = folder.glob("weights-*.safetensors")
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_everything_comes_back(result: pt.Result, saved: Path) -> None:
    model, hyper = fresh()
    loaded = pt.load_result(saved, model, hyper)
    assert loaded.model is model
    assert loaded.hyper is hyper
    assert not model.training
    for role in ("model", "hyper"):
        assert same(loaded.state_dict()[role], result.state_dict()[role])
    x, _ = rows(6, 5)
    assert torch.equal(model(x), result.model(x))
    for name in saving.FIELDS:
        assert getattr(loaded, name) == getattr(result, name), name
    pd.testing.assert_frame_equal(loaded.history, result.history)
    assert (loaded.best, loaded.summary(), repr(loaded)) == (result.best, result.summary(), repr(result))
    assert loaded.settings["inner_steps"] == 3
    assert "12 rows" in loaded.settings["problem"]


def test_every_field_is_saved(result: pt.Result) -> None:
    """A new field of `Result` needs a place in the folder."""
    tensors = {"model", "hyper", "out_of_fold", "fold_states"}
    assert set(saving.FIELDS) | tensors | {"provenance"} == set(result.__dataclass_fields__)


def test_folds_come_back(folded: pt.Result, tmp_path: Path) -> None:
    model, hyper = fresh()
    loaded = pt.load_result(folded.save(tmp_path / "saved"), model, hyper)
    assert loaded.out_of_fold is not None
    assert folded.out_of_fold is not None
    assert torch.equal(loaded.out_of_fold, folded.out_of_fold)
    x, _ = rows(6, 5)
    pairs = list(zip(loaded.fold_models, folded.fold_models, strict=True))
    assert len(pairs) == 2
    assert all(torch.equal(one(x), other(x)) and not one.training for one, other in pairs)


def test_without_modules_the_weights_are_there_and_no_code(folded: pt.Result, tmp_path: Path) -> None:
    loaded = pt.load_result(folded.save(tmp_path / "saved"))
    assert same(loaded.state_dict()["model"], folded.state_dict()["model"])
    assert isinstance(loaded.model, SavedModule)
    for use in (lambda: loaded.model(rows(2, 0)[0]), lambda: loaded.fold_models):
        with pytest.raises(pt.SettingError, match=r"without its modules, so Sequential .* use `pt.load_result\("):
            use()
    again = pt.load_result(loaded.save(tmp_path / "again"), *fresh())
    assert same(again.state_dict()["hyper"], folded.state_dict()["hyper"])
    assert same(again.fold_states[1], folded.fold_states[1])


def test_one_module_alone(result: pt.Result, saved: Path) -> None:
    model, _ = fresh()
    loaded = pt.load_result(saved, model)
    assert same(model.state_dict(), result.model.state_dict())
    assert isinstance(loaded.hyper, SavedModule)


def test_numbers_that_json_lacks_come_back(result: pt.Result, tmp_path: Path) -> None:
    odd = replace(result, rows=[{**result.rows[0], "valid_risk": float("inf"), "test_risk": float("nan")}])
    (row,) = pt.load_result(odd.save(tmp_path / "odd")).rows
    assert row["valid_risk"] == float("inf")
    assert row["test_risk"] != row["test_risk"]


def test_tied_and_shared_tensors_come_back(result: pt.Result, tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    twin = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    twin[1].weight = twin[0].weight
    pt.load_result(replace(result, model=tied).save(tmp_path / "tied"), model=twin)
    assert same(tied.state_dict(), twin.state_dict())


def test_the_tensors_can_be_read_without_pactune(result: pt.Result, saved: Path) -> None:
    found = safetensors.torch.load_file(weights_file(saved))
    assert torch.equal(found["model.0.weight"], result.model.state_dict()["0.weight"])
    assert any(name.startswith("hyper.") for name in found)


def test_no_pickle_in_the_folder(saved: Path) -> None:
    assert sorted(path.name.split("-")[0] for path in saved.iterdir()) == ["result.json", "weights"]
    assert b"\x80\x04" not in (saved / "result.json").read_bytes()


def test_files_have_the_usual_permissions_and_no_rest(saved: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in saved.iterdir()} == {0o644 & ~umask}
    assert not list(saved.glob("*.partial"))


def test_a_certificate_of_a_loaded_model_trusts_no_sample(result: pt.Result, saved: Path) -> None:
    loaded = pt.load_result(saved, *fresh())
    assert loaded.provenance.knows("model")
    sample = result.provenance.touched["report"][0]
    assert "rows of train" in " ".join(loaded.provenance.touches("model", sample))


# Saving again


def test_an_earlier_result_is_replaced_and_other_files_stay(result: pt.Result, folded: pt.Result, saved: Path) -> None:
    (saved / "notes.txt").write_text("mine")
    before = weights_file(saved).name
    folded.save(saved)
    assert weights_file(saved).name != before
    assert len(pt.load_result(saved).fold_states) == 2
    assert (saved / "notes.txt").read_text() == "mine"
    result.save(saved)
    assert not pt.load_result(saved).fold_states


@pytest.mark.parametrize("call", [0, 1])
def test_a_crash_leaves_the_earlier_result(
    call: int, result: pt.Result, folded: pt.Result, saved: Path, monkeypatch: Any
) -> None:
    calls: list[str] = []

    def full(path: Path, data: bytes) -> None:
        calls.append(path.name)
        if len(calls) > call:
            raise pt.RunFolderError("the disk is full")
        files.write_atomically(path, data)

    monkeypatch.setattr(saving, "write_atomically", full)
    with pytest.raises(pt.RunFolderError, match="disk is full"):
        folded.save(saved)
    monkeypatch.undo()
    assert len(calls) == call + 1
    assert pt.load_result(saved).rows == result.rows
    folded.save(saved)
    assert len(list(saved.iterdir())) == 2


def test_a_folder_with_other_content_is_refused(result: pt.Result, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with pytest.raises(pt.RunFolderError, match=r"holds other files, such as photo\.jpg; choose a new folder"):
        result.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_result_of_somebody_else_is_not_overwritten(result: pt.Result, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"score": 1}')
    with pytest.raises(pt.RunFolderError, match=r"cannot be replaced: .* is not a result of pactune"):
        result.save(tmp_path)
    assert (tmp_path / "result.json").read_text() == '{"score": 1}'


def test_places_that_cannot_be_written(result: pt.Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(pt.RunFolderError, match="cannot be made: File exists"):
        result.save(tmp_path / "file")
    for wrong in (None, 3, "", "a\0b"):
        with pytest.raises(pt.SettingError, match="`folder` must"):
            result.save(wrong)  # type: ignore[arg-type]


class Odd(nn.Module):
    """A module with a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def get_extra_state(self) -> Any:
        return {"steps": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


def test_a_state_that_is_no_tensor_is_refused(result: pt.Result, tmp_path: Path) -> None:
    with pytest.raises(pt.SettingError, match=r"state of `model` must be ordinary tensors .* _extra_state is a dict"):
        replace(result, model=Odd()).save(tmp_path / "odd")
    assert not (tmp_path / "odd").exists()


def test_a_value_that_json_lacks_is_refused(result: pt.Result, tmp_path: Path) -> None:
    with pytest.raises(pt.SettingError, match="JSON does not hold"):
        replace(result, settings={"inner": object()}).save(tmp_path / "odd")


# Wrong folders


def test_folders_without_a_result(result: pt.Result, tmp_path: Path) -> None:
    with pytest.raises(pt.RunFolderError, match=r"holds no result: there is no result\.json, and no such folder"):
        pt.load_result(tmp_path / "nowhere")
    with pytest.raises(pt.RunFolderError, match=r"name the folder that `result\.save` wrote"):
        pt.load_result(tmp_path)
    (tmp_path / "journal.jsonl").write_text("{}\n")
    with pytest.raises(pt.RunFolderError, match="folder of a run: use `fit"):
        pt.load_result(tmp_path)
    with pytest.raises(pt.SettingError, match="`folder` must be a path"):
        pt.load_result(7)  # type: ignore[arg-type]


def edit(folder: Path, change: Any, *, sealed: bool = True) -> None:
    """Change the document of a saved result; `sealed` makes its checksum right again."""
    path = folder / "result.json"
    document = json.loads(path.read_text())
    change(document)
    if sealed:
        document["checksum"] = saving._digest(saving._canonical(document["result"]))
    path.write_text(json.dumps(document))


DAMAGE = {
    "another format": (lambda d: d.update(format=2, pactune="9.0"), r"of format 2, which pactune 9\.0 wrote, and .* 1"),
    "another kind": (lambda d: d.update(kind="recipe"), "is not a result of pactune"),
    "a field is missing": (lambda d: d["result"].pop("rows"), "damaged: result lacks rows"),
    "a wrong status": (lambda d: d["result"].update(status="fine"), "status must be one of"),
    "rows of texts": (lambda d: d["result"].update(rows=["a"]), r"rows\[0\] must be a dict"),
    "ζ is a text": (lambda d: d["result"].update(zeta="1"), "zeta must be a number"),
    "a path in place of a name": (lambda d: d["result"].update(weights="../x"), "names no file of weights"),
    "a missing file": (
        lambda d: d["result"].update(weights=f"weights-{'0' * 32}.safetensors"),
        "cannot be read: No such file",
    ),
    "too many folds": (lambda d: d["result"].update(folds=10**9), "more folds than tensors"),
    "an odd float": (lambda d: d["result"].update(zeta={"$float": "x"}), r"damaged: \$float"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_document_is_refused(name: str, saved: Path) -> None:
    change, words = DAMAGE[name]
    edit(saved, change)
    with pytest.raises(pt.RunFolderError, match=words):
        pt.load_result(saved)


def test_a_changed_number_is_noticed(saved: Path) -> None:
    edit(saved, lambda d: d["result"].update(kept_step=1), sealed=False)
    with pytest.raises(pt.RunFolderError, match=r"result\.json is damaged: its checksum is wrong"):
        pt.load_result(saved)


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"\xff\xfe", b'{"a": 1, "a": 2}', b"[" * 5000], ids=repr)
def test_a_document_that_is_no_json_object(content: bytes, saved: Path) -> None:
    (saved / "result.json").write_bytes(content)
    with pytest.raises(pt.RunFolderError, match=r"is damaged|is not a result|holds no result"):
        pt.load_result(saved)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_of_weights(share: float, saved: Path) -> None:
    path = weights_file(saved)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(pt.RunFolderError, match=r"weights-.* is damaged: its checksum is wrong"):
        pt.load_result(saved)


def test_a_file_that_is_no_safetensors(saved: Path) -> None:
    weights_file(saved).unlink()
    data = b"not tensors"
    name = f"weights-{saving._digest(data)}.safetensors"
    (saved / name).write_bytes(data)
    edit(saved, lambda d: d["result"].update(weights=name))
    with pytest.raises(pt.RunFolderError, match=r"weights-.* is damaged: "):
        pt.load_result(saved)


@pytest.mark.skipif(os.name != "posix", reason="links need POSIX")
def test_links_inside_the_folder_are_not_followed(saved: Path, tmp_path: Path) -> None:
    path = weights_file(saved)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(pt.RunFolderError, match="it is a link"):
        pt.load_result(saved)
    os.mkfifo(tmp_path / "pipe")
    (saved / "result.json").unlink()
    (tmp_path / "pipe").rename(saved / "result.json")
    with pytest.raises(pt.RunFolderError, match="it is a FIFO"):
        pt.load_result(saved)


# Modules that do not fit

MISFITS = {
    "another width": (lambda: network(6), r"0\.bias is \(6,\) float32 in `model` and \(5,\) float32 in the folder"),
    "another type": (lambda: network().double(), r"0\.bias is \(5,\) float64 in `model`"),
    "fewer tensors": (lambda: nn.Sequential(nn.Linear(4, 5)), r"1\.bias is not there in `model`"),
    "more tensors": (lambda: nn.Sequential(*network(), nn.Linear(3, 3)), r"3\.bias is \(3,\) float32 .* not there in"),
    "no module": (lambda: "network", "`model` must be an nn.Module"),
    "no shape": (lambda: nn.LazyLinear(3), "lazy modules"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_model_that_does_not_fit(name: str, saved: Path) -> None:
    make, words = MISFITS[name]
    model: Any = make()
    before = {} if name in ("no module", "no shape") else {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(pt.SettingError, match=words):
        pt.load_result(saved, model=model)
    assert not before or same(before, model.state_dict())


def test_a_hyper_module_that_does_not_fit(saved: Path) -> None:
    with pytest.raises(pt.SettingError, match="`hyper` must be made like the WeightDecay that was saved"):
        pt.load_result(saved, hyper=pt.WeightDecay(network(), per="global"))


# Other processes, devices and defaults


def test_another_process_reads_it(result: pt.Result, saved: Path) -> None:
    code = f"import pactune as pt; print(pt.load_result({str(saved)!r}).summary())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == result.summary()


def test_the_default_device_does_not_matter(folded: pt.Result, tmp_path: Path) -> None:
    torch.set_default_device("meta")
    try:
        folded.save(tmp_path / "saved")
        loaded = pt.load_result(tmp_path / "saved")
    finally:
        torch.set_default_device(None)
    assert same(loaded.state_dict()["model"], folded.state_dict()["model"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_result_of_a_gpu_loads_on_the_cpu(tmp_path: Path) -> None:
    model = network().cuda()
    hyper = pt.WeightDecay(model)
    x, y = (value.cuda() for value in rows(20, 1))
    problem = pt.Problem(model, hyper, data=(x, y), folds=2, loss=cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=3, outer=outer, objective=pt.PACBayes(1e-3))
    result = tuner.fit(2, progress=False)
    loaded = pt.load_result(result.save(tmp_path / "saved"), *fresh())
    assert result.out_of_fold is not None
    assert loaded.out_of_fold is not None
    assert torch.equal(loaded.out_of_fold, result.out_of_fold.cpu())
    assert {value.device.type for value in loaded.state_dict()["model"].values()} == {"cpu"}
    assert [next(one.parameters()).device.type for one in loaded.fold_models] == ["cpu", "cpu"]
    back = pt.load_result(tmp_path / "saved", network().cuda())
    assert torch.equal(back.model(x), result.model(x))
    assert next(back.fold_models[0].parameters()).is_cuda
