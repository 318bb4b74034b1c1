"""`baton generate`: continues a prompt and prints the text as it comes."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from baton import errors, events
from baton.cli.connect import Connection, connects
from baton.cli.plain import plain_errors
from baton.client import Client, GenerateOptions, Message, Prompt, Stream
from baton.constraints import Constraint, JsonSchema, Regex

_MILD = 0.7
_TELL_S = 2.0
_KINDS = {
    events.PromptEcho: "prompt",
    events.Delta: "delta",
    events.Completed: "completed",
}


@plain_errors
@connects
def generate(
    connection: Connection,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Text to continue; `-` reads stdin.")
    ],
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy. Default: the model's own, else 0.7.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most probable.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from this much probability.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Least probability, relative to the most probable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A string that ends the output; may be repeated.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Tokens before it may end.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Go on after end tokens.")] = False,
    logprobs: Annotated[
        int | None, typer.Option(help="Report log probabilities, and so many of the best tokens.")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", help="Choices to generate, each printed once all ended.")
    ] = None,
    best_of: Annotated[
        int | None, typer.Option(help="Refused above --n: every choice drawn is returned.")
    ] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt too.")] = False,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: against tokens of prompt and output.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Above 0: against tokens that are in the output.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Above 0: against tokens, as often as they came.")
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option("--json-schema", help="Hold the output to the JSON Schema in this file."),
    ] = None,
    regex: Annotated[
        str | None, typer.Option("--regex", help="Hold the output to a regular expression.")
    ] = None,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="A word not to write; may be repeated.")
    ] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=BIAS", help="Add to a token's logit; may be repeated."),
    ] = None,
    prompt_logprobs: Annotated[
        int | None, typer.Option(help="As --logprobs, for the prompt; shown by --json.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Take the prompt as a user's message to a chat model.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON event a line.")] = False,
    model: Annotated[str | None, typer.Option(help="Name of the model.")] = None,
    request_class: Annotated[
        str | None, typer.Option("--class", help="interactive, or batch: it may take long.")
    ] = None,
    ttft_target: Annotated[
        float | None, typer.Option(help="Seconds to the first token to hold, or be refused.")
    ] = None,
    itl_target: Annotated[
        float | None, typer.Option(help="Seconds between tokens to hold.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="-10 to 10; each step is worth a second in the queue.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="On whose behalf.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Deadline in seconds.")] = None,
) -> None:
    """Continue PROMPT, printing the text token by token."""
    text = _read_stdin() if prompt == "-" else prompt
    options = GenerateOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop,
        min_tokens=min_tokens,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        n=n,
        best_of=best_of,
        echo=echo,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        bad_words=bad_word,
        logit_bias=_biases(logit_bias or ()),
        prompt_logprobs=prompt_logprobs,
        constraint=_constraint(json_schema, regex),
        model=model,
        request_class=request_class,  # type: ignore[typeddict-item]
        ttft_target=ttft_target,
        itl_target=itl_target,
        priority=priority,
        tenant=tenant,
        timeout=timeout,
    )
    input_: Prompt = [Message("user", text)] if chat else text
    with connection.client() as client:
        if temperature is None:
            options["temperature"] = _mild_temperature(client)
        with client.generate(input_, **options) as stream:
            if as_json:
                _print_json(stream)
            elif n is not None and n > 1:
                _print_choices(stream)
            else:
                _print_text(stream)


def _mild_temperature(client: Client) -> float | None:
    """None where the model's makers recommend one, or the server can't tell now. Without any,
    the protocol's 1.0 makes small models ramble."""
    try:
        recommended = client.model(timeout=_TELL_S).default_sampling.temperature
    except errors.BatonError:
        return None
    return _MILD if recommended is None else None


def _biases(given: Sequence[str]) -> dict[int, float]:
    biases = {}
    for text in given:
        token_id, _, bias = text.partition("=")
        try:
            biases[int(token_id)] = float(bias)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not ID=BIAS, such as 17=-5") from None
    return biases


def _constraint(json_schema: Path | None, regex: str | None) -> Constraint | None:
    if json_schema is None:
        return None if regex is None else Regex(regex)
    if regex is not None:
        raise typer.BadParameter("--json-schema and --regex are both given")
    try:
        return JsonSchema(json_schema.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{json_schema}: {error}") from None


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise errors.InvalidRequest("text", "stdin is not valid UTF-8") from error


def _print_text(stream: Stream) -> None:
    last = ""
    try:
        for event in stream:
            if isinstance(event, events.Delta | events.PromptEcho) and event.text:
                last = event.text
                _write(event.text)
    finally:
        if last and not last.endswith("\n"):
            _write("\n")


def _print_choices(stream: Stream) -> None:
    """Each choice by itself, since as streams they would mix."""
    collector = events.Collector()
    for event in stream:
        collector.add(event)
    whole = collector.result()
    prompt = whole.prompt.text if whole.prompt else ""
    for index, choice in enumerate(whole.choices):
        _write(f"[{index}] {prompt}{choice.text}\n")


def _print_json(stream: Stream) -> None:
    for event in stream:
        # Bytes of tokens, which may be parts of a character, are lists of numbers.
        _write(json.dumps(event_json(event), ensure_ascii=False, default=list) + "\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def event_json(event: events.Event) -> dict[str, Any]:
    """An event as JSON: `event` says which, the rest are its fields."""
    return {"event": _KINDS[type(event)], **asdict(event)}
