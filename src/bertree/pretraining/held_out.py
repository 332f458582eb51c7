"""What a run is evaluated on: held-out text, read in a way that other recipes share.

Masked models are evaluated on the same masked tokens, whatever their seed, format, masking unit, mask rate and sequence
length (data/held_out.py). Sentence pairs are always segments filled to the length of the phase. Other objectives
(the next token, a permutation) read held-out text as the recipe does, with one seed for all runs.
"""

from dataclasses import replace

from bertree.config.sections import Phase
from bertree.data.held_out import MaskedDocuments
from bertree.data.lane_stream import LaneStream
from bertree.data.masking import UNMASKED, Masking
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import UserError
from bertree.objectives.objective import WeightedTerms
from bertree.objectives.pretraining import TERMS
from bertree.pretraining.build import lane_settings, masking_of
from bertree.pretraining.recipe import Recipe
from bertree.train.held_out import HeldOutQuestion

EVALUATION_TOKENS = 16384  # in a batch
EVALUATION_SEGMENTS = 16  # of each lane
EVALUATION_SEED = 0  # of every run, so that seeds can be compared


def held_out_questions(recipe: Recipe, store: Store, phase: Phase, evaluated: WeightedTerms) -> list[HeldOutQuestion]:
    """Return what each term of the loss is evaluated on in a phase."""
    tokens = recipe.run.eval_tokens
    if recipe.data.in_lanes:
        return [HeldOutQuestion(evaluated, held_out_lanes(recipe, store, phase), tokens)]
    if masking_of(recipe.data).unit in UNMASKED or store.controls:
        return [HeldOutQuestion(evaluated, held_out_stream(recipe, store, phase), tokens)]
    questions = []
    for name, term in evaluated.terms.items():
        terms = WeightedTerms({name: term}, {name: evaluated.weights[name]})
        if TERMS[name].format:
            pairs = held_out_stream(recipe, store, phase, f"segment-pair+{TERMS[name].format}")
            questions.append(HeldOutQuestion(terms, pairs, tokens))
        else:
            masked = MaskedDocuments(
                store, max_length=phase.max_length, tokens=tokens, batch_tokens=_batch_tokens(recipe, phase)
            )
            questions.append(HeldOutQuestion(terms, masked, None))
    return questions


def held_out_lanes(recipe: Recipe, store: Store, phase: Phase) -> LaneStream:
    """Return held-out text in lanes of several segments each, so that most are read with a memory."""
    least = 2 if recipe.data.backward else 1  # one of them backwards
    if store.tokens // least <= phase.max_length:
        raise UserError(
            f"{store.folder}: the {store.tokens:,} tokens that are held out are too few for segments of "
            f"{phase.max_length}; set a larger data.held_out_share, or data.held_out=ANOTHER-STORE"
        )
    tokens = min(EVALUATION_TOKENS, min(recipe.run.eval_tokens, store.tokens) // EVALUATION_SEGMENTS)
    return LaneStream(
        store,
        lanes=max(least, tokens // phase.max_length),
        length=phase.max_length,
        seed=EVALUATION_SEED,
        masking=masking_of(recipe.data),
        **lane_settings(recipe.data),
    )


def held_out_stream(recipe: Recipe, store: Store, phase: Phase, format: str = "") -> Stream:
    """Return held-out text as the recipe reads it, or in another format with BERT's masks; always the same."""
    return Stream(
        store,
        format=format or recipe.data.format,
        masking=Masking("token") if format else replace(masking_of(recipe.data), duplicates=0),
        batch_tokens=_batch_tokens(recipe, phase),
        max_length=phase.max_length,
        seed=EVALUATION_SEED,
    )


def _batch_tokens(recipe: Recipe, phase: Phase) -> int:
    few = 6 if 6 * phase.max_length <= 2 * EVALUATION_TOKENS else 2  # sequences in a batch, of the longest
    return max(min(EVALUATION_TOKENS, recipe.run.eval_tokens), few * phase.max_length)
