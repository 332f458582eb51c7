"""Hugging Face's form of the requests of bertree's own routes: a body with `inputs` and `parameters`, as its clients
send it. Each form is a table of names, and a function that writes the answer."""

from typing import Any

from bertree.serve.http.handlers import Context, InputsForm, InputsRequest


def _write_masks(context: Context, request: InputsRequest, reply: Any) -> Any:
    """Return the candidates of the mask, or of each mask."""
    identify = context.service.registry.model(reply["model"]).model.required_tokenizer.backend.token_to_id
    text: Any = request.inputs

    def describe(mask: Any, candidate: Any) -> dict[str, Any]:
        word, token = candidate["text"], identify(candidate["token"])
        sequence = text[: mask["start"]] + word + text[mask["end"] :]
        return {"score": candidate["probability"], "token": token, "token_str": word, "sequence": sequence}

    masks = [[describe(mask, candidate) for candidate in mask["candidates"]] for mask in reply["masks"]]
    return masks[0] if len(masks) == 1 else masks


def _write_entities(context: Context, request: InputsRequest, reply: Any) -> Any:
    return [
        {"entity_group": e["label"], "word": e["text"], "score": e["score"], "start": e["start"], "end": e["end"]}
        for e in reply["entities"]
    ]


def _write_answer(context: Context, request: InputsRequest, reply: Any) -> Any:
    places = {name: reply[name] or 0 for name in ("start", "end")}
    return {"answer": reply["answer"] or "", "score": reply["score"], **places}


def _write_text(context: Context, request: InputsRequest, reply: Any) -> Any:
    before = request.inputs if request.parameters.get("return_full_text") else ""
    return [{"generated_text": f"{before}{reply['text']}"}]


FILL = InputsForm("text", {"top_k": "k"}, _write_masks)
ENTITIES = InputsForm("text", {"aggregation_strategy": ""}, _write_entities)
ANSWER = InputsForm({"question": "question", "context": "passage"}, {}, _write_answer)
GENERATE = InputsForm(
    "prompt",
    {
        "max_new_tokens": "tokens",
        "repetition_penalty": "penalty",
        **{name: name for name in ("temperature", "top_k", "top_p", "seed")},
        **dict.fromkeys(("return_full_text", "details", "decoder_input_details", "watermark"), ""),
    },
    _write_text,
)
