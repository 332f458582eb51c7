"""Questions to a language model: prompts from a template, greedy answers up to the end of a line, SQuAD's scores."""

import json
from pathlib import Path

import bertree
from bertree.inference.model import Model
from bertree.inference.zero_shot import read_questions
from tests.support.command import Command
from tests.support.language_models import language_model

FILE = [
    {"template": "the {question} of {place}"},
    {"question": "lamp", "place": "the road", "answer": "x"},
    {"question": "river", "place": "the stone", "answers": ["y", "the window"], "template": "{question} {place}"},
]


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def answer(model: Model, prompt: str) -> str:
    (text,) = model.generate(prompt, tokens=32, temperature=0)
    return text.text.strip().partition("\n")[0].strip()


def test_answers_are_generated_greedily_and_scored(tmp_path: Path) -> None:
    model = language_model("gpt2", max_positions=64)
    prompts = [question.prompt for question in read_questions(write(tmp_path / "q.jsonl", *FILE))]
    assert prompts == ["the lamp of the road", "river the stone"]
    expected = [answer(model, prompt) for prompt in prompts]
    half = " ".join(expected[1].split()[:2])
    records = [FILE[0], FILE[1] | {"answer": f"The {expected[0]}!"}, FILE[2] | {"answers": ["zebra", half]}]
    scores = bertree.evaluate(model, task="questions", data=write(tmp_path / "q.jsonl", *records), out=tmp_path / "out")
    assert [line["predicted"] for line in scores.predictions["dev"]] == expected
    assert scores.metrics["exact"] == 0.5
    first, second = (line["f1"] for line in scores.predictions["dev"])
    assert (first, 0 < second < 1) == (1.0, True)
    assert scores.metrics["f1"] == (first + second) / 2
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["examples"] == 2


def test_what_cannot_be_asked_is_refused_in_one_line(tmp_path: Path, command: Command) -> None:
    language_model("gpt2").save(tmp_path / "gpt")
    language_model("gpt1", direction="backward").save(tmp_path / "backward")
    language_model("bert-base", attention="full").save(tmp_path / "bert")
    question = {"question": "who", "answer": "Ada"}
    refused: dict[str, tuple[str, list[object]]] = {
        "line 1: the question has no answer to score by": ("gpt", [{"question": "who"}]),
        "line 2: the question has no answer to score by": ("gpt", [question, {"question": "a", "answers": []}]),
        "has no questions": ("gpt", [{"template": "{question}"}]),
        "has no field 'question'": ("gpt", [{"answer": "a"}]),
        "has no field 'context', which the template names": ("gpt", [{"template": "{context}"}, question]),
        "the template is not valid": ("gpt", [{"template": "{question"}, question]),
        "question 2 has": ("gpt", [question, {"question": "the lamp " * 60, "answer": "a"}]),
        "reads from right to left": ("backward", [question]),
        "sees the text on both sides": ("bert", [question]),
    }
    for line, (name, records) in refused.items():
        path = write(tmp_path / "q.jsonl", *records)
        result = command("evaluate", tmp_path / name, "--task", "questions", "--data", path, "--device", "cpu")
        assert (result.code, len(result.lines)) == (2, 1), result.err
        assert line in result.lines[0]
