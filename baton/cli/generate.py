"""`baton generate`: continues a prompt and prints the text as it comes."""

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from baton import errors, events
from baton._calls import DEFAULT_ADDRESS
from baton.cli.plain import plain_errors
from baton.client import Client, GenerateOptions, Message, Prompt, Stream


@plain_errors
def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Text to continue; `-` reads stdin.")
    ],
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
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
    chat: Annotated[
        bool, typer.Option("--chat", help="Take the prompt as a user's message to a chat model.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON event a line.")] = False,
    model: Annotated[str | None, typer.Option(help="Name of the model.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Deadline in seconds.")] = None,
    address: Annotated[str, typer.Option(help="host:port of a router.")] = DEFAULT_ADDRESS,
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
        model=model,
        timeout=timeout,
    )
    input_: Prompt = [Message("user", text)] if chat else text
    with Client(address) as client, client.generate(input_, **options) as stream:
        if as_json:
            _print_json(stream)
        else:
            _print_text(stream)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise errors.InvalidRequest("text", "stdin is not valid UTF-8") from error


def _print_text(stream: Stream) -> None:
    last = ""
    try:
        for event in stream:
            if isinstance(event, events.Delta) and event.text:
                last = event.text
                _write(event.text)
    finally:
        if last and not last.endswith("\n"):
            _write("\n")


def _print_json(stream: Stream) -> None:
    for event in stream:
        _write(json.dumps(event_json(event), ensure_ascii=False) + "\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def event_json(event: events.Event) -> dict[str, Any]:
    """An event as JSON: `event` says which, the rest are its fields."""
    kind = "delta" if isinstance(event, events.Delta) else "completed"
    return {"event": kind, **asdict(event)}
