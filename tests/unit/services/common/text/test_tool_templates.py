"""Functions in chat templates: of the kinds that models come with, written for these tests."""

import pytest

from baton.errors import InvalidRequest
from services.common.text import Conversation, Message, ToolCall, ToolFormat
from services.common.text.template import ChatTemplate

HERMES = """
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n' }}{%- endif %}
{{- 'Functions:' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\nCall one with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>' + m.content + '</tool_response><|im_end|>\n' }}
{%- elif m.role != 'system' or not tools %}
{{- '<|im_start|>' + m.role + '\n' }}{{- m.content }}
{%- for call in m.tool_calls or [] %}
{%- set f = call.function %}
{{- '<tool_call>{"name": "' + f.name + '", "arguments": ' }}{{- f.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
{%- if thinking is defined and thinking is false %}{{- '<think></think>' }}{%- endif %}
"""
LLAMA = """{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- for m in messages %}
{%- if 'tool_calls' in m %}
{%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
{%- set f = m.tool_calls[0].function %}
{{- '[assistant]{"name": "' + f.name + '", ' }}
{{- '"parameters": ' }}{{- f.arguments | tojson }}{{- '}[end]' }}
{%- elif m.role == 'tool' %}{{- '[ipython]' + m.content + '[end]' }}
{%- else %}
{{- '[' + m.role + ']' }}
{%- if tools is not none and loop.last %}
{{- 'Answer with {"name": the function, "parameters": its arguments}.' }}
{%- for t in tools %}{{- t | tojson(indent=1) }}{%- endfor %}
{%- endif %}
{{- m.content + '[end]' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '[assistant]' }}{%- endif %}
"""
MISTRAL = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.tool_calls is defined %}
{{- '[TOOL_CALLS][' }}
{%- for call in m.tool_calls %}
{%- if call.id is not defined or call.id | length != 9 %}
{{- raise_exception('ids of calls have 9 characters') }}
{%- endif %}
{{- {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif m.role == 'tool' %}
{{- '[TOOL_RESULTS]' + {'call_id': m.tool_call_id, 'content': m.content} | tojson }}
{%- elif m.role == 'assistant' %}{{- m.content + eos_token }}
{%- else %}{{- raise_exception('only user, assistant and tool are known') }}
{%- endif %}
{%- endfor %}
"""
CODER = "{% for tool in tools %}{{ tool.name }}{% endfor %}<tool_call><function=f></function>"
GENERIC = "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}"
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
MESSAGES = [
    Message("user", "2+2?"),
    Message("assistant", "", tool_calls=(ToolCall("add", {"a": 2, "b": [2]}, "abcdefghi"),)),
    Message("tool", "4", tool_call_id="abcdefghi"),
    Message("user", "so?"),
]


def render(source, conversation):
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(conversation)


def refusal(source, conversation) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        render(source, conversation)
    return caught.value


def test_hermes_like():
    assert render(HERMES, Conversation(MESSAGES, [TOOL], {"thinking": False})) == (
        '<|im_start|>system\nFunctions:\n{"type": "function", "function": {"name": "add", '
        '"parameters": {"type": "object"}}}\n'
        'Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n'
        "<|im_start|>user\n2+2?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "add", "arguments": {"a": 2, "b": [2]}}'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>4</tool_response><|im_end|>\n"
        "<|im_start|>user\nso?<|im_end|>\n<|im_start|>assistant\n<think></think>"
    )


def test_llama_like():
    assert render(LLAMA, Conversation(MESSAGES, [{"a": 1}])) == (
        '<s>[user]2+2?[end][assistant]{"name": "add", "parameters": {"a": 2, "b": [2]}}[end]'
        '[ipython]4[end][user]Answer with {"name": the function, "parameters": its arguments}.'
        '{\n "a": 1\n}so?[end][assistant]'
    )


def test_mistral_like():
    assert render(MISTRAL, Conversation(MESSAGES, [{"a": 1}])) == (
        '<s>[INST]2+2?[/INST][TOOL_CALLS][{"name": "add", "arguments": {"a": 2, "b": [2]}, '
        '"id": "abcdefghi"}]</s>[TOOL_RESULTS]{"call_id": "abcdefghi", "content": "4"}'
        '[AVAILABLE_TOOLS][{"a": 1}][/AVAILABLE_TOOLS][INST]so?[/INST]'
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (HERMES, ToolFormat.HERMES),
        (LLAMA, ToolFormat.LLAMA),
        (MISTRAL, ToolFormat.MISTRAL),
        (CODER, ToolFormat.JSON),
        (GENERIC, ToolFormat.JSON),
        (PLAIN, ToolFormat.NONE),
        ("{{ 'tools' }}<tool_call>{{ messages[0].tools }}", ToolFormat.NONE),
        ("{% if tools", ToolFormat.NONE),
        (r'{% if tools %}{{ "{\"name\": f, \"parameters\": x}" }}{% endif %}', ToolFormat.LLAMA),
    ],
)
def test_how_the_model_calls_functions(source, expected):
    assert ChatTemplate(source, {}).tool_format is expected


def test_no_tools_are_none():
    assert render(GENERIC, Conversation([Message("user", "x")])) == "x"
    assert render("{{ tools is none }}", Conversation([])) == "True"


def test_tools_for_a_template_that_knows_none_are_refused():
    error = refusal(PLAIN, Conversation(MESSAGES, [TOOL]))
    assert (error.field, error.reason) == ("chat.tools_json", "NO_TOOLS_IN_TEMPLATE")


@pytest.mark.parametrize("taken", ["messages", "tools", "bos_token", "eos_token"])
def test_variables_can_not_take_the_place_of_others(taken):
    error = refusal(GENERIC, Conversation(MESSAGES, [], {"more": 1, taken: 1}))
    assert error.field == "chat.template_variables_json"
    assert repr(taken) in error.message


def test_what_is_absent_is_not_defined():
    source = "{% for name in messages[0] %}{{ name }} {% endfor %}"
    assert render(source, Conversation([Message("user", "x")])) == "role content "
    source = "{% for name in messages[0].tool_calls[0] %}{{ name }} {% endfor %}"
    calls = (ToolCall("f", {}),)
    assert render(source, Conversation([Message("user", "", "", calls)])) == "type function "
    source = "{{ messages[0].name }}/{{ messages[0].tool_call_id }}"
    assert render(source, Conversation([Message("tool", "", "f", (), "1")])) == "f/1"


def test_a_refused_role_of_developers_is_told_of():
    error = refusal(MISTRAL, Conversation([Message("developer", "x")]))
    assert "only user, assistant and tool are known" in error.message
    assert "the role 'developer'" in error.message
    error = refusal(MISTRAL, Conversation([Message("system", "x")]))
    assert "developer" not in error.message
