"""Questions about a harbour that does not exist."""

from bertree.tasks.squad.official import GoldAnswer, SquadExample
from bertree.tasks.squad.task import SquadTask

HARBOUR = (
    "The harbour of Ålsund was dug in 1868–71 by the engineer Ida Vennström’s company.  It froze every\n"
    "winter until the (warm-water) outlet of the paper mill kept it open; 42 ships a day, 9 of them ferries, "
    "now call there. Its lighthouse, the “Old Lady”, is 31 m high and was painted red in 1903."
)
QUESTIONS = [
    ("Who dug the harbour?", "Ida Vennström"),
    ("When was it dug?", "1868–71"),
    ("How high is the lighthouse?", "31 m"),
    ("What is the lighthouse called?", "Old Lady"),
    ("What kept it open?", "(warm-water) outlet of the paper mill"),
    ("How many ships are ferries?", "9"),
]
SQUAD, SQUAD2 = SquadTask("squad"), SquadTask("squad2")


def example(question: str, text: str | None, context: str = HARBOUR, identity: str = "q") -> SquadExample:
    answers = () if text is None else (GoldAnswer(text, context.index(text)),)
    return SquadExample(identity, question, context, answers)


def harbour(text: str = HARBOUR) -> list[SquadExample]:
    return [example(question, answer, text, f"q{n}") for n, (question, answer) in enumerate(QUESTIONS)]
