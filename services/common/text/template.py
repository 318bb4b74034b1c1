"""A model's chat template: Jinja2 in a sandbox.

The template comes with the model and sees what clients write, so it is trusted with neither:
it reaches no Python internals, and a rendering that takes too long or grows too large ends
with an error. What it may use are the helpers that published templates expect.

Knows no tokenizer beyond the strings of its special tokens.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from baton.errors import InvalidRequest
from services.common.text.conversation import Conversation
from services.common.text.tool_format import ToolFormat, tool_format

RENDER_SECONDS = 2.0
MAX_RENDERED_CHARACTERS = 16 * 1024 * 1024
_MAX_BASE, _MAX_EXPONENT = 1 << 64, 64
_MAX_MESSAGE_CHARACTERS = 300

Clock = Callable[[], float]


class ChatTemplate:
    """Writes conversations the way a model was trained to read them. Thread-safe."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], clock: Clock = time.monotonic
    ) -> None:
        """`special_tokens` by name, such as bos_token: variables of the template.

        Never raises: a template that cannot be parsed says so at each `render`, since the model
        can still continue plain text.
        """
        self._special_tokens = dict(special_tokens)
        self._clock = clock
        self._template: jinja2.Template | None = None
        self.fault = ""
        """Why it cannot be parsed; empty: it can."""
        self.tool_format = ToolFormat.NONE
        """How the model calls functions."""
        try:
            self._template, names = _compile(source)
        except jinja2.TemplateError as error:
            self.fault = f"cannot be parsed: {_first_line(error)}"
        else:
            if "tools" in names:
                self.tool_format = tool_format(source)

    def render(self, conversation: Conversation) -> str:
        """The conversation, ready for the model's answer.

        Raises InvalidRequest where the template refuses it or can't be worked with ("chat"), where
        it knows no functions ("chat.tools_json"), or where a variable has the name of another
        ("chat.template_variables_json").
        """
        if self._template is None:
            text = f"the model's chat template {self.fault}"
            raise InvalidRequest("chat", text, reason="CHAT_TEMPLATE")
        variables = self._variables(conversation)
        token = _budget.set(_Budget(self._clock, self._clock() + RENDER_SECONDS))
        try:
            return _joined(self._template.generate(variables))
        except Exception as error:
            text = f"the model's chat template refuses it: {_first_line(error)}"
            if any(message.role == "developer" for message in conversation.messages):
                text += " (it may not know the role 'developer'; most know 'system')"
            raise InvalidRequest("chat", text, reason="CHAT_TEMPLATE") from error
        finally:
            _budget.reset(token)

    def _variables(self, conversation: Conversation) -> dict[str, Any]:
        own = {
            **self._special_tokens,
            "messages": [message.variables() for message in conversation.messages],
            "tools": list(conversation.tools) or None,
        }
        if conversation.tools and self.tool_format is ToolFormat.NONE:
            raise InvalidRequest(
                "chat.tools_json",
                "the model's chat template knows no functions",
                reason="NO_TOOLS_IN_TEMPLATE",
            )
        if taken := sorted(own.keys() & conversation.variables.keys()):
            raise InvalidRequest(
                "chat.template_variables_json",
                f"{taken[0]!r} is a variable that the template has already",
            )
        return {"add_generation_prompt": True, "documents": None, **conversation.variables, **own}


class _Budget:
    """The time that one rendering may take."""

    def __init__(self, clock: Clock, deadline: float) -> None:
        self._clock = clock
        self._deadline = deadline

    def check(self) -> None:
        if self._clock() > self._deadline:
            raise jinja2.TemplateRuntimeError(f"it takes more than {RENDER_SECONDS:g} s")


_budget: ContextVar[_Budget] = ContextVar("budget")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox, with every call and multiplication looked at first."""

    intercepted_binops = frozenset(["*", "**"])

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _budget.get().check()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if abs(left) > _MAX_BASE or abs(right) > _MAX_EXPONENT:
                raise jinja2.TemplateRuntimeError("a power is too large")
        else:
            for many, count in ((left, right), (right, left)):
                if hasattr(many, "__len__") and len(many) * count > MAX_RENDERED_CHARACTERS:
                    raise jinja2.TemplateRuntimeError("a repeated text is too long")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}` marks the model's own words for training; here it marks nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _SafeNamespace(Namespace):
    """Jinja2's `namespace`, without names that mean something to Python."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        for name in values:
            _SafeNamespace._check(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _SafeNamespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have the name {name!r}")


@jinja2.pass_context
def _timed(_context: Context, items: Iterable[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for item in items:
        budget.check()
        yield item


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateRuntimeError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.filters["timed"] = _timed
    environment.globals = {
        "range": environment.globals["range"],
        "dict": _make_dict,
        "namespace": _SafeNamespace,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return environment


def _compile(source: str) -> tuple[jinja2.Template, set[str]]:
    """Compiles `source` so that each turn of each loop looks at the clock; and its variables."""
    environment = _environment()
    tree = environment.parse(source)
    names = {found.name for found in tree.find_all(nodes.Name)}
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, "timed", [], [], None, None, lineno=loop.lineno)
    code = environment.compile(tree)
    template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
    return template, names


def _joined(parts: Iterable[str]) -> str:
    kept: list[str] = []
    size = 0
    for part in parts:
        size += len(part)
        if size > MAX_RENDERED_CHARACTERS:
            raise jinja2.TemplateRuntimeError(
                f"it writes more than {MAX_RENDERED_CHARACTERS} characters"
            )
        kept.append(part)
    return "".join(kept)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:_MAX_MESSAGE_CHARACTERS]
