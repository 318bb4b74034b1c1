import re
from itertools import count

import pytest

from baton.errors import InvalidRequest
from services.common.text import Conversation, Message
from services.common.text.template import ChatTemplate

MESSAGES = [Message("user", "hi"), Message("assistant", "hello")]


def render(source, messages=MESSAGES, **special):
    return ChatTemplate(source, special).render(Conversation(messages))


def refusal(source, messages=MESSAGES) -> str:
    with pytest.raises(InvalidRequest) as caught:
        render(source, messages)
    assert caught.value.field == "chat"
    assert caught.value.reason == "CHAT_TEMPLATE"
    return caught.value.message


def test_a_conversation_as_gemma_writes_it():
    source = (
        "{{ bos_token }}{% for message in messages %}\n"
        "    {% set role = 'model' if message.role == 'assistant' else message['role'] %}\n"
        "<start_of_turn>{{ role }}\n{{ message.content | trim }}<end_of_turn>\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    )
    assert render(source, bos_token="<bos>") == (
        "<bos><start_of_turn>user\nhi<end_of_turn>\n"
        "<start_of_turn>model\nhello<end_of_turn>\n"
        "<start_of_turn>model\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in [1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "2"),
        ("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c", "abhic"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
         "1/2False 2/2True "),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "hi"),
        ("{% for m in messages if m.role == 'x' %}a{% else %}none{% endfor %}", "none"),
        ("{% for m in messages[1:] %}{{ m.content[:2] }}{% endfor %}", "he"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[0]['content']) }}", "<hi>"),
        ("{{ dict(a=1).a }}{{ messages | length }}{{ messages[0].content.upper() }}", "12HI"),
        ("{{ tools is none }}{{ documents is none }}{{ nothing is defined }}", "TrueTrueFalse"),
        ("{{ '-' * 3 }}{{ 2 ** 10 }}", "---1024"),
        ("{{ nothing }}{{ eos_token }}", ""),
        ("{% for i in [[1], 2] recursive %}{{ i if i is number else loop(i) }}{% endfor %}", "12"),
        ("x\n", "x"),
    ],
)  # fmt: skip
def test_helpers_that_templates_expect(source, expected):
    assert render(source) == expected


def test_strftime_now_is_a_date():
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))


def test_messages_are_text_and_never_template():
    hostile = [Message("user", "{{ 7 * 7 }}{% raise %}<b>")]
    assert render("{{ messages[0].content }}", hostile) == "{{ 7 * 7 }}{% raise %}<b>"


def test_raise_exception_tells_the_client_why():
    source = "{{ raise_exception('roles must alternate') }}"
    assert refusal(source).endswith("refuses it: roles must alternate")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['__builtins__'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ dict.__globals__ }}",
        "{{ messages[0].items.__self__.__class__ }}",
        "{% set ns = namespace() %}{{ ns.__class__.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{x.__class__}'.format_map({'x': ''}) }}",
        "{{ 'a'.format.__globals__ }}",
        "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__html__ = 1 %}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lipsum.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_python_is_out_of_reach(source):
    try:
        shown = render(source)
    except InvalidRequest:
        shown = ""
    assert shown == ""


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages[7].content.x }}",
        "{{ messages + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * ['x'] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 2 ** 64 ** 64 ** 64 }}",
        "{% for i in none %}{% endfor %}",
    ],
)
def test_what_fails_inside_is_a_refusal(source):
    assert "the model's chat template refuses it: " in refusal(source)


def test_output_that_grows_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("services.common.text.template.MAX_RENDERED_CHARACTERS", 1000)
    assert "more than 1000 characters" in refusal("{% for i in range(1001) %}x{% endfor %}")
    assert len(render("{% for i in range(1000) %}x{% endfor %}")) == 1000


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else '' }}{% endmacro %}{{ f(60) }}",
        "{% for i in [30] recursive %}{{ loop([i - 1, i - 1]) if i else 0 }}{% endfor %}",
    ],
)
def test_a_rendering_that_takes_too_long_is_refused(source):
    ticks = count()
    template = ChatTemplate(source, {}, clock=lambda: next(ticks) / 1000)
    with pytest.raises(InvalidRequest, match="it takes more than 2 s"):
        template.render(Conversation(MESSAGES))
    assert next(ticks) < 2100


def test_a_template_that_cannot_be_parsed_says_so_at_each_rendering():
    template = ChatTemplate("{% for %}", {})
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="cannot be parsed: "):
            template.render(Conversation(MESSAGES))
