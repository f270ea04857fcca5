"""Random templates: the metered sandbox gives Jinja2's own text, or refuses by name."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lanewise.errors import TextError
from lanewise.text.template import ChatTemplate
from tests.text.test_template import CONVERSATION, TOOLS, jinja

ATOMS = (
    "messages|messages[0].role|messages[1]['content']|tools|1|2.5|'ab'|none|true|missing|loop.index"
    "|x|[1,'a']|{'k': 1}|range(3)|messages[1:]|bos_token|messages[-1].content|ns.v|(1,2)"
)
FILTERS = (
    "length;list;first;last;upper;tojson;string;trim;join(',');default('d');sort;reverse|list;int;"
    "map('string')|list;float;abs;unique|list;sum;max;min;items|list;dictsort;batch(2)|list;count;"
    "slice(2)|list;replace('a','b');indent(2);e;safe;title;capitalize;wordcount;truncate(5);round;"
    "center(9);select|list;groupby('role')|list;selectattr('role')|list;map(attribute='role')|list;"
    "tojson(indent=1);urlencode"
)
OPERATORS = "+ - * / // % ~ == != < >= in and or"
TESTS = "defined|none|string|mapping|iterable|sequence|number|eq 1|in [1]|true|odd|boolean"
METHODS = (
    "strip()|split('a')|get('role')|startswith('a')|upper()|role|format(1)|replace('a','c')"
    "|count('a')"
)
#: What we refuse and Jinja2 prints: objects without a text of their own.
OURS = ("has no text", "is inside a list or a dict", "sum adds numbers only")


def expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({}|{})".format, inner, st.sampled_from(FILTERS.split(";"))),
        st.builds("({} {} {})".format, inner, st.sampled_from(OPERATORS.split()), inner),
        st.builds("({} is {})".format, inner, st.sampled_from(TESTS.split("|"))),
        st.builds("{}.{}".format, inner, st.sampled_from(METHODS.split("|"))),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{'z': {}}}".format, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("(not {})".format, inner),
    )


EXPRESSION = st.recursive(st.sampled_from(ATOMS.split("|")), expressions, max_leaves=5)
LEAF = st.one_of(
    st.builds("{{{{ {} }}}}".format, EXPRESSION), st.sampled_from(["text\n", " \n", "{#- c -#}"])
)


def statements(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, max_size=3).map("".join)
    return st.one_of(
        st.builds("{{% for x in {} %}}{}{{% else %}}E{{% endfor %}}".format, EXPRESSION, body),
        st.builds("{{%- if {} %}}{}{{% else -%}}{}{{% endif %}}".format, EXPRESSION, body, body),
        st.builds("{{% set x = {} %}}".format, EXPRESSION),
        st.builds("{{% set ns.v = {} %}}".format, EXPRESSION),
        st.builds("{{% set x %}}{}{{% endset %}}".format, body),
        st.builds(
            "{{% macro m(x, y=1) %}}{}{{% endmacro %}}{{{{ m({}) }}}}".format, body, EXPRESSION
        ),
        st.builds(
            "{{% for x in {} if x %}}{{{{ loop.last }}}}{}"
            "{{% if loop.index > 2 %}}{{% break %}}{{% endif %}}{{% endfor %}}".format,
            EXPRESSION, body,
        ),
    )  # fmt: skip


# Parts are joined for a template that does not read them (test_template.py); here are texts.
TEXTS = [m if isinstance(m.get("content"), str | None) else {**m, "content": "Thanks"}
         for m in CONVERSATION]  # fmt: skip
TEMPLATE = st.lists(st.recursive(LEAF, statements, max_leaves=4), max_size=4).map("".join)


@given(TEMPLATE)
@example("{{ range(3).count('a') }}{{ range(5).count(2) }}{{ range(7).index(3) }}")
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_templates(body: str) -> None:
    source = "{% set ns = namespace(v=0) %}" + body
    values = {"messages": TEXTS, "tools": TOOLS, "add_generation_prompt": True}
    try:
        expected = jinja(source, **copy.deepcopy(values))  # its templates can reach our lists
    except Exception:  # whatever a template throws
        expected = None
    try:
        assert ChatTemplate(source, "<s>", "</s>").render(**values) == expected
    except TextError as error:
        assert expected is None or any(words in error.message for words in OURS), error
