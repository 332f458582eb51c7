"""Folders: round trips byte for byte, old names, shards, and everything that can be wrong with a file."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertree
from bertree.batch import Batch
from bertree.errors import BertreeWarning, UserError
from bertree.inference.load import identify, random_model
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.interop.huggingface.config import family_of_architecture
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.model.readout import Readout
from tests.support.parity import peer, ragged
from tests.support.shared import suite_has

SMALL = {"vocab_size": 60, "width": 32, "heads": 2, "layers": 3, "max_positions": 32}
WEIGHTS = "model.safetensors"
HEADS = [{}, {"mask": 0}, {"sequence": 3}, {"token": 5}, {"span": 2}, {"choice": 1}]
MEMBERS = ["bert-base", "megatron-bert", "roberta-base", "albert-base", "distilbert-base"]


def tiny(name: str, heads: dict[str, int], **more: object) -> bertree.Model:
    return random_model(preset(name).architecture.with_values(SMALL | more), heads, seed=1)


def hidden(model: bertree.Model, ids: list[list[int]]) -> torch.Tensor:
    return torch.cat(model.hidden(ids))


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("heads", suite_has([{"mask": 0}, {"choice": 1}], HEADS))
def test_round_trip_through_hugging_face_is_byte_identical(name: str, heads: dict[str, int], tmp_path: Path) -> None:
    model = tiny(name, heads)
    model.save(tmp_path / "a")
    folder.write(folder.read(tmp_path / "a"), tmp_path / "b", to="huggingface")
    assert not (tmp_path / "b" / folder.DESCRIPTION).exists()
    folder.write(folder.read(tmp_path / "b"), tmp_path / "c", to="bertree")
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "c" / WEIGHTS).read_bytes()
    again = bertree.load(tmp_path / "c")
    assert {k: v.tolist() for k, v in again.network.state_dict().items()} == {
        k: v.tolist() for k, v in model.network.state_dict().items()
    }


@pytest.mark.parametrize("name", MEMBERS)
def test_a_saved_model_is_read_by_transformers(name: str, tmp_path: Path) -> None:
    model = tiny(name, {"sequence": 3})
    model.labels.extend(["no", "maybe", "yes"])
    model.save(tmp_path / "m")
    theirs, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "m", output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert set(loading["unexpected_keys"]) <= {"roberta.pooler.dense.weight", "roberta.pooler.dense.bias"}
    assert theirs.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    ids, _ = ragged([7], 60, 0, 3)
    with torch.no_grad():
        expected = theirs.base_model(input_ids=torch.tensor(ids)).last_hidden_state[0]
    assert (hidden(model, ids) - expected).abs().max() < 1e-5
    assert bertree.load(tmp_path / "m").labels == ["no", "maybe", "yes"]


@pytest.mark.parametrize(
    "changes", [{"sharing": "attention"}, {"sharing": "ffn"}, {"embedding_width": 32}, {"residual": "pre-norm"}]
)
def test_points_hugging_face_does_not_know_keep_our_names(changes: dict[str, object], tmp_path: Path) -> None:
    model = tiny("albert-base", {"mask": 0}, **changes)
    model.save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "bertree"
    again = bertree.load(tmp_path / "m")
    assert torch.equal(hidden(model, [[5, 6, 7]]), hidden(again, [[5, 6, 7]]))
    with pytest.raises(UserError, match="Hugging Face"):
        folder.write(folder.read(tmp_path / "m"), tmp_path / "h", to="huggingface")
    assert not (tmp_path / "h").exists()


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("albert-base", {"residual": "pre-norm"}, "Albert .* residual is pre-norm, .* with model.residual=post-norm"),
        ("bert-base", {"residual": "pre-norm", "sharing": "all"}, "MegatronBert .* sharing is all, there it is none"),
        ("roberta-base", {"residual": "pre-norm", "sequence_head": "pooler"}, "position_offset is 2, there it is 0"),
        (
            "bert-base",
            {"residual": "pre-norm", "segments": 0},
            "there it is 1; .* with model.segments=1",
        ),
        ("bert-base", {"residual": "pre-norm", "embedding_norm": True}, "embedding_norm is True, there it is False"),
        ("bert-base", {"embedding_norm": False}, "Bert .* embedding_norm is False, there it is True"),
        ("albert-base", {"embedding_norm": False}, "Albert .* embedding_norm is False, there it is True"),
    ],
)
def test_residuals_hugging_face_does_not_know_are_refused(name: str, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        family_of_architecture(preset(name).architecture.with_values(changes))


def test_dropout_before_a_classifier_survives_a_family_that_has_no_key_for_it(tmp_path: Path) -> None:
    model = tiny("megatron-bert", {"sequence": 2}, dropout=0.0, classifier_dropout=0.2)
    folder.write(model._contents, tmp_path / "m", to="huggingface")
    assert folder.read_architecture(tmp_path / "m") == model.architecture
    edit(tmp_path / "m", classifier_dropout=None)
    assert folder.read_architecture(tmp_path / "m").classifier_dropout == 0.0


@pytest.mark.parametrize("heads", [{"mask": 0, "pair": 2}, {"sequence": 2}, {}])
@pytest.mark.parametrize("to", ["bertree", "huggingface"])
def test_a_model_on_disk_is_counted_with_the_mlm_head_that_it_has(
    heads: dict[str, int], to: str, tmp_path: Path
) -> None:
    model = tiny("albert-base", heads)
    folder.write(model._contents, tmp_path / "m", to=to)
    assert set(folder.read_heads(tmp_path / "m")) == set(heads)
    described = bertree.info(tmp_path / "m")
    counts = described["parameters"]
    mlm_head = sum(p.numel() for n, p in model.network.named_parameters() if n.startswith("heads.mask."))
    assert counts["mlm_head"] == mlm_head
    assert described["weight_bytes"]["float32"] == 4 * (counts["total"] + mlm_head)


def test_a_file_from_before_an_axis_existed_has_its_default(tmp_path: Path) -> None:
    model = tiny("bert-base", {})
    model.save(tmp_path / "m")
    path, newer = tmp_path / "m" / folder.DESCRIPTION, ("residual = ", "embedding_norm = ", "residual_init = ")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(newer)))
    assert len(path.read_text().splitlines()) == len(lines) - 3
    again = bertree.load(tmp_path / "m")
    assert again.architecture == model.architecture
    assert torch.equal(hidden(model, [[5, 6, 7]]), hidden(again, [[5, 6, 7]]))


def test_a_shared_layer_is_stored_once(tmp_path: Path) -> None:
    tiny("albert-base", {}).save(tmp_path / "m")
    names = load_file(tmp_path / "m" / WEIGHTS)
    assert sum("attention.query.weight" in name for name in names) == 1


def test_old_names_extra_keys_prefixes_and_shards(tmp_path: Path) -> None:
    model = peer("bert", "ForMaskedLM", 0, vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                 intermediate_size=32, max_position_embeddings=20)  # fmt: skip
    model.save_pretrained(tmp_path / "new")
    expected = hidden(bertree.load(tmp_path / "new"), [[4, 5, 6]])
    state = load_file(tmp_path / "new" / WEIGHTS)
    old = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
        for k, v in state.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(20)[None]
    old["cls.predictions.decoder.bias"] = state["cls.predictions.bias"].clone()
    old["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    save_file(old, tmp_path / "old" / WEIGHTS)
    with_old_names = bertree.load(tmp_path / "old")
    assert torch.equal(hidden(with_old_names, [[4, 5, 6]]), expected)

    model.save_pretrained(tmp_path / "shards", max_shard_size="5KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    assert torch.equal(hidden(bertree.load(tmp_path / "shards"), [[4, 5, 6]]), expected)

    old["cls.predictions.decoder.weight"] += 1
    save_file(old, tmp_path / "old" / WEIGHTS)
    with pytest.raises(UserError, match="differs from 'embeddings"):
        bertree.load(tmp_path / "old")


def test_an_unknown_head_is_said_and_left(tmp_path: Path) -> None:
    model = peer("bert", "ForMaskedLM", 0, vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                 intermediate_size=32, max_position_embeddings=20)  # fmt: skip
    model.save_pretrained(tmp_path / "m")
    edit(tmp_path / "m", architectures=["BertForSomethingNew"])
    with pytest.warns(BertreeWarning, match="BertForSomethingNew") as caught:
        loaded = bertree.load(tmp_path / "m")
    assert len(loaded.network.heads) == 0
    assert any("not used: tensor 'cls." in str(w.message) for w in caught)


def edit(path: Path, **changes: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder.write(tiny("bert-base", {"sequence": 2})._contents, tmp_path / "m", to="huggingface")
    return tmp_path / "m"


def truncate(path: Path) -> None:
    data = (path / WEIGHTS).read_bytes()
    (path / WEIGHTS).write_bytes(data[: len(data) // 2])


def to_pickle(path: Path) -> None:
    (path / WEIGHTS).unlink()
    (path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


def shards_outside(path: Path) -> None:
    (path / WEIGHTS).rename(path.parent / "stolen.safetensors")
    index = {"weight_map": {"a": "../stolen.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def lost_shard(path: Path) -> None:
    (path / WEIGHTS).unlink()
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))


def drop_tensor(path: Path) -> None:
    state = load_file(path / WEIGHTS)
    del state["bert.encoder.layer.1.output.dense.bias"]
    save_file(state, path / WEIGHTS)


def whole_numbers(path: Path) -> None:
    state = load_file(path / WEIGHTS)
    state["bert.pooler.dense.bias"] = torch.zeros(32, dtype=torch.int64)
    save_file(state, path / WEIGHTS)


BROKEN = {
    "no weights": (lambda p: (p / WEIGHTS).unlink(), "holds no model.safetensors"),
    "truncated": (truncate, "model.safetensors: is not a complete safetensors file"),
    "empty": (lambda p: (p / WEIGHTS).write_bytes(b""), "is not a complete safetensors file"),
    "not tensors": (lambda p: (p / WEIGHTS).write_bytes(b"hello" * 100), "is not a complete safetensors file"),
    "pickle": (to_pickle, "pytorch_model.bin: is a pickle.*save_pretrained"),
    "shard outside": (shards_outside, "not the name of a safetensors file in this folder"),
    "lost shard": (lost_shard, "model-1.safetensors: is missing"),
    "missing tensor": (drop_tensor, "tensor 'encoder.layer.1.output.dense.bias' is missing"),
    "integer tensor": (whole_numbers, "not floating-point"),
    "wrong shape": (lambda p: edit(p, vocab_size=61), r"has shape 60 x 32, but the configuration needs 61 x 32"),
    "unknown type": (lambda p: edit(p, model_type="llama"), "model_type 'llama' is not one bertree can load"),
    "near type": (lambda p: edit(p, model_type="bertt"), "did you mean 'bert'"),
    "no type": (lambda p: edit(p, model_type=None), "no 'model_type'"),
    "wrong value": (lambda p: edit(p, hidden_size="wide"), "config.json: hidden_size: 'wide'"),
    "impossible": (lambda p: edit(p, num_attention_heads=5), "5 heads cannot divide"),
    "activation": (lambda p: edit(p, hidden_act="swish"), "activation 'swish' is not supported"),
    "relative": (lambda p: edit(p, position_embedding_type="relative_key"), "only 'absolute'"),
    "cross-attention": (lambda p: edit(p, add_cross_attention=True), "read the states of another"),
    "bad json": (lambda p: (p / "config.json").write_text("{"), "config.json: is not valid JSON"),
    "list": (lambda p: (p / "config.json").write_text("[]"), "must hold a JSON object"),
    "binary": (lambda p: (p / "config.json").write_bytes(b"\xff\xfe\x00"), "not UTF-8"),
    "nothing": (lambda p: (p / "config.json").unlink(), "not a model folder"),
    "tokenizer": (lambda p: (p / "tokenizer.json").write_text("{}"), r"tokenizer.json: cannot be read"),
    "half bpe": (lambda p: (p / "vocab.json").write_text("{}"), "needs both vocab.json and merges.txt"),
    "spiece": (lambda p: (p / "spiece.model").write_bytes(b"\x0a\xff\xff"), "is not a SentencePiece model"),
    "big vocabulary": (
        lambda p: (p / "vocab.txt").write_text("\n".join(["[UNK]", *(f"w{i}" for i in range(70))])),
        "tokenizer has 71 tokens, but the model was trained with 60",
    ),
}  # fmt: skip


@pytest.mark.process  # the tokenizer library reads a file of unknown structure in a process of its own
@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_one_line(case: str, theirs: Path) -> None:
    damage, reason = BROKEN[case]
    damage(theirs)
    with pytest.raises(UserError, match=reason) as error:
        bertree.load(theirs)
    assert "\n" not in str(error.value)
    assert str(theirs.parent) in str(error.value)


def test_the_folder_of_a_run_stands_for_its_model(theirs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").touch()
    with pytest.raises(UserError, match="is the folder of a run that has no model yet"):
        bertree.load(run)
    model = theirs.rename(run / "model")
    assert bertree.load(run).name == "run/model"
    assert bertree.info(run)["parameters"] == bertree.info(model)["parameters"]
    assert bertree.convert(run, tmp_path / "copy", "bertree") == bertree.load(model).architecture
    assert identify(run) == identify(model) == str(model.resolve())
    assert bertree.verify(run).kind == "run", "a run is verified with its checkpoints"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("widht = 3", "widht: unknown key, did you mean 'width'"),
        ("width = 'x'", "width: must be a whole number"),
        ("[other]", "unknown table"),
        ("=", "not valid TOML"),
    ],
)
def test_our_own_file_is_not_trusted_either(line: str, reason: str, tmp_path: Path) -> None:
    tiny("bert-base", {}).save(tmp_path / "m")
    path = tmp_path / "m" / folder.DESCRIPTION
    text = path.read_text()
    if line.startswith("wid"):
        text = text.replace("width = 32\n", f"{line}\n", 1)
    else:
        text += f"{line}\n"
    path.write_text(text)
    with pytest.raises(UserError, match=reason):
        bertree.load(tmp_path / "m")


def test_saving_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("bert-base", {"mask": 0})
    model.save(tmp_path / "m")
    before = (tmp_path / "m" / WEIGHTS).read_bytes()

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertree.interop.weights.save_file", full_disk)
    with pytest.raises(UserError, match="No space left"):
        model.save(tmp_path / "m")
    with pytest.raises(UserError, match="No space left"):
        model.save(tmp_path / "new")
    assert (tmp_path / "m" / WEIGHTS).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_other_peoples_folders_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    model = tiny("bert-base", {})
    with pytest.raises(UserError, match="holds other files"):
        model.save(tmp_path / "photos")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        model.save(tmp_path / "file")
    with pytest.raises(UserError, match="is a file"):
        bertree.load(tmp_path / "file")
    assert (tmp_path / "photos" / "cat.jpg").exists()


TASK = {"name": "ner", "scheme": "BIO", "threshold": -0.25, "limit": float("inf"), "longest": 30, "lower": False}


@pytest.mark.parametrize(
    ("readout", "words"),
    [
        (Readout("sum-all"), r"other layers than the last alone \(sum-all\); convert it to onnx"),
        (Readout("concat-last-four", 5, 1, True), "a BiLSTM stands between its encoder and its head; use it as a"),
        (Readout(frozen=True), "its head was trained on a frozen encoder; convert it to onnx"),
        (Readout(crf=True), "a CRF chooses its tags; use it as a bertree folder"),
        (Readout(lstm=4, crf=True), "a BiLSTM .*, a CRF"),
        (Readout(frozen=True, pooled=True), "its head reads the vector of a text; convert it to onnx"),
    ],
)
def test_what_stands_on_top_survives(readout: Readout, words: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    a = preset("bert-base").architecture.with_values(SMALL | {"layers": 4, "init_std": 0.3})
    network = build(a, {"token": 3}, readout).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder.write(Contents(a, network, labels=["O", "B", "I"], task=TASK), tmp_path / "m")
    again = folder.read(tmp_path / "m")
    assert (again.network.readout, again.task, again.labels) == (readout, TASK, ["O", "B", "I"])
    batch = Batch.pack([[5, 6, 7], [8, 9]])
    cells = torch.tensor([0, 1, 2, 3, 4])
    left, right = (n.class_logits("token", n(batch), batch) for n in (network, again.network.eval()))
    assert torch.equal(left, right)
    assert {n: p.requires_grad for n, p in again.network.named_parameters()} == {
        n: p.requires_grad for n, p in network.named_parameters()
    }
    if readout.crf:
        assert again.network.crf is not None
        assert torch.equal(again.network.crf.decode(left, cells, 3), network.crf.decode(right, cells, 3))
    with pytest.raises(UserError, match=f"Hugging Face has no such model: .*{words}"):
        folder.write(again, tmp_path / "h", to="huggingface")
    assert not (tmp_path / "h").exists()
    path = tmp_path / "m" / folder.DESCRIPTION
    path.write_text(path.read_text().replace('layout = "bertree"', 'layout = "huggingface"'))
    with pytest.raises(UserError, match=r"does not fit model\.layout"):
        folder.read(tmp_path / "m")


def test_a_task_is_kept_in_either_layout_and_checked(tmp_path: Path) -> None:
    model = tiny("bert-base", {"sequence": 2})
    model._contents.task = {"name": "sst-2"}
    model.save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "bert"
    path = tmp_path / "m" / folder.DESCRIPTION
    assert folder.read(tmp_path / "m").task == {"name": "sst-2"}
    text = path.read_text()
    assert "[top]" not in text
    for wrong, reason in (
        ('name = ["a"]', "task.name: must be a string"),
        ("name = 3", "task.name: must be a string"),
        ("list = [1]", "task.list: must be a single value"),
        ("[top]\nlayer = 3", "top.layer: unknown key, did you mean 'layers'"),
        ("[top]\nlstm = 5000000", "top.lstm: must lie between"),
        ('[top]\nlayers = "concat-last-four"', "does not fit model.layout"),
    ):
        path.write_text(text.replace('name = "sst-2"', wrong))
        with pytest.raises(UserError, match=reason) as caught:
            folder.read(tmp_path / "m")
        assert "bertree.toml" in str(caught.value)


@pytest.mark.parametrize(("classes", "kind"), [(1, "regression"), (3, "single_label_classification")])
def test_transformers_is_told_what_a_sequence_head_is_for(classes: int, kind: str, tmp_path: Path) -> None:
    folder.write(tiny("bert-base", {"sequence": classes})._contents, tmp_path / "m", to="huggingface")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    assert theirs.config.problem_type == kind
    assert theirs.num_labels == classes
    folder.write(tiny("bert-base", {"token": 3})._contents, tmp_path / "t", to="huggingface")
    assert "problem_type" not in json.loads((tmp_path / "t" / "config.json").read_text())
