"""Chat templates in the shapes that models publish: found and rendered as transformers does."""

import json
from functools import cache

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import InvalidRequest
from services.common.text import Conversation, Message, TextModel
from tests.support.tokenizers import (
    PLAIN_ADDED,
    SPECIAL,
    byte_level,
    byte_level_metadata,
    write_gguf,
)

HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|head|>system<|/head|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: tools\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{%- endif %}
"""
INSTRUCT = (
    "{%- if messages[0]['role'] == 'system' -%}{%- set system = messages[0]['content'] -%}"
    "{%- set rest = messages[1:] -%}{%- else -%}{%- set rest = messages -%}{%- endif -%}"
    "{{ bos_token }}{%- set ns = namespace(index=0, last='') -%}{%- for message in rest %}"
    "{%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}"
    "{{- raise_exception('roles must alternate: ' ~ ns.last ~ ' then ' ~ message.role) }}"
    "{%- endif %}{%- set ns.index = ns.index + 1 %}{%- set ns.last = message.role %}"
    "{%- if message['role'] == 'user' %}{%- if loop.last and system is defined %}"
    "{{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}{%- else %}"
    "{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
    "{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content'] + eos_token }}"
    "{%- else %}{{- raise_exception('Only user and assistant roles are supported') }}"
    "{%- endif %}{%- endfor %}"
)
CHATML = """{% for message in messages %}
    {% if loop.first and messages[0]['role'] != 'system' %}
        {{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {% endif %}
    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
TURNS = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)
THINKING = (
    "{% if not add_generation_prompt is defined %}"
    "{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_first=false, system_prompt='', count=0) %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = ns.system_prompt ~ message['content'] %}{%- endif %}{%- endfor %}"
    "{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{'<|User|>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}"
    "{% set content = message['content'] %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{'<|Assistant|>' + content + eos_token}}{% set ns.count = ns.count + 1 %}{%- endif %}"
    "{%- endfor %}{% if add_generation_prompt %}{{'<|Assistant|>'}}{% endif %}{{ ns.count }}"
)
MACROS = (
    "{%- macro block(role, text, last=false) -%}<{{ role | upper }}{{ '!' if last }}>"
    "{{ text | replace('\\n', ' ') }}{%- endmacro -%}"
    "{% for m in messages | rejectattr('role', 'equalto', 'system') %}"
    "{% if loop.index > 3 %}{% break %}{% endif %}{{ block(m.role, m.content, loop.last) }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}"
    "{% endfor %}{{ messages[-1] | tojson }}{{ messages | map(attribute='role') | join(',') }}"
    "{{ pad_token is defined }}{{ image_token }}"
)
TEMPLATES = {
    "headers": HEADERS,
    "instruct": INSTRUCT,
    "chatml": CHATML,
    "turns": TURNS,
    "thinking": THINKING,
    "macros": MACROS,
}
NAMES = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "image_token": PLAIN_ADDED}
MESSAGES = [("system", " Be brief. "), ("user", "hi\n"), ("assistant", "hello"), ("user", "so?")]


def write(path, config, files=()):
    byte_level().save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | NAMES | config
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in dict(files).items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path


def transformers_tokenizer(path, **options):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, **options)


def theirs(tokenizer, messages) -> str | None:
    """None: it refuses."""
    conversation = [{"role": role, "content": content} for role, content in messages]
    try:
        return tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=False
        )
    except (jinja2.TemplateError, ValueError):
        return None


def said(messages) -> Conversation:
    return Conversation([Message(*message) for message in messages])


def ours(model: TextModel, messages) -> str | None:
    try:
        return model.render_chat(said(messages))
    except InvalidRequest:
        return None


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    @cache
    def loaded(name: str):
        path = write(tmp_path_factory.mktemp("model"), {"chat_template": TEMPLATES[name]})
        return TextModel.load(path), transformers_tokenizer(path)

    return loaded


@pytest.mark.parametrize("name", TEMPLATES)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["user", "assistant", "user", "assistant", "system", "tool"]),
            st.sampled_from(
                ["hi", " x \n", "<think>a</think>\n\nb", "é🙂", "{{ 1 }}", '"<&>"', ""]
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_conversations_are_written_as_transformers_writes_them(models, name, messages):
    model, tokenizer = models(name)
    assert ours(model, messages) == theirs(tokenizer, messages)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_usual_conversation_is_accepted(models, name):
    model, tokenizer = models(name)
    messages = MESSAGES[1:] if name == "turns" else MESSAGES
    written = model.render_chat(said(messages))
    assert "so?" in written
    assert written == theirs(tokenizer, messages)
    conversation = [{"role": role, "content": content} for role, content in messages]
    ids = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    assert model.encode_chat(said(messages)) == ids


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "template": f"configured {name}"} for name in names]


PLACES = {
    "none": ({}, {}, None),
    "configured": ({"chat_template": "configured"}, {}, "configured"),
    "named": ({"chat_template": named("tool_use", "default")}, {}, "configured default"),
    "named, no default": ({"chat_template": named("tool_use", "rag")}, {}, None),
    "file": ({}, {"chat_template.jinja": "file"}, "file"),
    "file and configured": (
        {"chat_template": named("default", "tool_use")},
        {"chat_template.jinja": "file"},
        "file",
    ),
    "file and folder": (
        {"chat_template": "configured"},
        {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tools"},
        "file",
    ),
    "default in the folder": (
        {"chat_template": "configured"},
        {"chat_template.jinja": "file", "additional_chat_templates/default.jinja": "folder"},
        "folder",
    ),
    "no default in the folder": (
        {"chat_template": "configured"},
        {"additional_chat_templates/tool_use.jinja": "tools"},
        None,
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_template_that_counts(place, tmp_path):
    config, files, expected = PLACES[place]
    path = write(tmp_path, config, files)
    model = TextModel.load(path)
    assert ours(model, MESSAGES) == expected == theirs(transformers_tokenizer(path), MESSAGES)
    assert model.has_chat_template == (expected is not None)


def test_a_folder_of_the_other_name_counts_as_well(tmp_path):
    path = write(tmp_path, {}, {"chat_templates/default.jinja": "folder"})
    assert ours(TextModel.load(path), MESSAGES) == "folder"


@pytest.mark.parametrize("configured", [5, [1], [{"name": "default"}], {"default": 5}, ["x"]])
def test_a_template_that_is_no_text_is_none(configured, tmp_path):
    model = TextModel.load(write(tmp_path, {"chat_template": configured}))
    assert not model.has_chat_template


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        ({"tokenizer.chat_template": INSTRUCT}, INSTRUCT),
        (
            {
                "tokenizer.chat_templates": ["tool_use"],
                "tokenizer.chat_template.tool_use": "tools",
                "tokenizer.chat_template": INSTRUCT,
            },
            INSTRUCT,
        ),
        ({"tokenizer.chat_template.default": INSTRUCT}, INSTRUCT),
        ({"tokenizer.chat_template.tool_use": "tools"}, None),
        ({}, None),
    ],
)
def test_the_template_of_a_gguf_file(templates, expected, tmp_path):
    metadata = byte_level_metadata(byte_level(), "gpt-2") | templates
    model = TextModel.load(write_gguf(tmp_path / "m.gguf", metadata))
    assert model.has_chat_template == (expected is not None)
    if "tokenizer.chat_template" in templates:
        tokenizer = transformers_tokenizer(tmp_path, gguf_file="m.gguf")
        assert model.render_chat(said(MESSAGES)) == theirs(tokenizer, MESSAGES)
