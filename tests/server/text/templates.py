"""Chat templates of the shapes that published models use, written for these tests."""

from __future__ import annotations

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe helpful<|im_end|>\\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

TRIMMING = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must take turns: user, assistant, user') }}
    {%- endif %}
    {%- if loop.first and system_message %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ system_message ~ '\\n\\n' ~ message.content | trim ~ '<|im_end|>' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content | trim ~ '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant' }}{%- endif %}"""

WITH_TOOLS = """{%- set ns = namespace(users=0) %}
{%- macro describe(tool) %}
{{ tool.name }}: {{ tool.parameters | tojson(indent=2) }}
{% endmacro %}
{%- if tools is not none and tools %}<|im_start|>tools{% for tool in tools %}{{ describe(tool) }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.users = ns.users + 1 %}{% endif %}
    {%- if message.content == '' %}{% continue %}{% endif %}
<|im_start|>{{ message.role }}
{% generation %}{{ message.content.split('</think>')[-1].lstrip() }}{% endgeneration %}<|im_end|>
{%- endfor %}
{{ ns.users }} on {{ strftime_now('%d %b %Y') }}{% if thinking is defined and thinking %} <think>{% endif %}
"""

NO_BORDERS = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""Puts one message right behind the other."""
