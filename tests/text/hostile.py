"""Chat templates that mean harm, and what they must end in: a code, or text that gives nothing.

Each value: (source, code) or (source, the text that it renders).
"""

from __future__ import annotations

LIMIT, BROKEN = "text.template_limit", "text.template"


def grow(change: str, start: str = "'ab'", times: int = 1000, end: str = "") -> str:
    """A loop that grows a value by an expression of itself."""
    loop = f"{{% for i in range({times}) %}}{{% set ns.x = {change} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={start}) %}}{loop}{end}"


def loops(body: str) -> str:
    """Ten thousand million times ``body``."""
    return "{% for a in range(99999) %}{% for b in range(99999) %}" + body + "{% endfor %}" * 2


TIME = {
    "range": ("{% for i in range(10**9) %}x{% endfor %}", LIMIT),
    "range listed": ("{{ range(10**9)|list }}", LIMIT),
    "loops": (loops("x"), LIMIT),
    "empty loops": (loops(""), LIMIT),
    "loops of calls": (loops("{{ 'a'.upper() }}"), LIMIT),
    "lazy": (loops("{{ range(99999)|reject('lt', 10**9)|first }}"), LIMIT),
    "sorting": (loops("{{ range(99999)|sort|length }}"), LIMIT),
    "splitting": ("{% set x = 'a ' * 900000 %}" + loops("{% set z = x.split() %}"), LIMIT),
    "slicing": ("{% set x = 'a' * 4000000 %}" + loops("{% set z = x[1:] %}"), LIMIT),
    "comparing": ("{% set x = [1] * 200000 %}" + loops("{% set z = x[1:] == x %}"), LIMIT),
    "searching": ("{% set x = 'a' * 2000000 %}" + loops("{% set z = x[:9999] in x %}"), LIMIT),
    "titles": ("{% set x = 'aB' * 900000 %}" + loops("{% set z = x|title %}"), LIMIT),
    "cycler": ("{% set c = cycler(1, 2) %}" + loops("{{ c.next() }}"), LIMIT),
    "macro twice": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        LIMIT,
    ),
    "sum of lists": ("{{ range(999)|map('string')|map('list')|sum(start=[]) }}", BROKEN),
    "recursive loop of a graph": (
        grow("[ns.x, ns.x]", "[[]]", 17)
        + "{% for x in ns.x recursive %}{{ loop(x) }}{% endfor %}",
        LIMIT,
    ),
    "hash of a tuple": (grow("(ns.x, ns.x)", "(1,)", 60, "{{ {ns.x: 1} }}"), LIMIT),
    "power": ("{{ 10 ** (10 ** 9) }}", LIMIT),
    "powers": (grow("ns.x ** 9", "9"), LIMIT),
    "products": (grow("ns.x * ns.x", "9"), LIMIT),
    "round": ("{{ 1.5|round(10**9, 'floor') }}", LIMIT),
}
MEMORY = {
    "times": ("{{ 'a' * 10**9 }}", LIMIT),
    "times, turned": ("{{ 10**9 * 'a' }}", LIMIT),
    "list times": ("{{ ([1] * 10**9)|length }}", LIMIT),
    "plus": (grow("ns.x + ns.x"), LIMIT),
    "tilde": (grow("ns.x ~ ns.x"), LIMIT),
    "join": (grow("[ns.x, ns.x]|join"), LIMIT),
    "escape": (grow("(ns.x|string|e)|string ~ ns.x", "'&'"), LIMIT),
    "set block": (
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}"
        "{% endset %}{% set ns.x = y %}{% endfor %}",
        LIMIT,
    ),
    "constant text": (loops("y" * 50_000), LIMIT),
    "calls in calls": (
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call f() %}" * 18 + "x" * 1000 + "{% endcall %}" * 18,
        LIMIT,
    ),
    "list of lists": (grow("[ns.x, ns.x]", "[1]", 60, "{{ ns.x }}"), LIMIT),
    "list of lists as JSON": (grow("[ns.x, ns.x]", "[1]", 60, "{{ ns.x|tojson }}"), LIMIT),
    "dict of dicts": (grow("dict(a=ns.x, b=ns.x)", "{}", 60, "{{ ns.x }}"), LIMIT),
    "dict of dicts compared": (grow("dict(a=ns.x, b=ns.x)", "{}", 60, "{{ ns.x == 1 }}"), LIMIT),
    "dict of dicts tested": (grow("dict(a=ns.x, b=ns.x)", "{}", 60, "{{ ns.x is eq 1 }}"), LIMIT),
    "filled batches": (grow("[1]|batch(1000, ns.x)|list", "[1]", 9, "{{ ns.x }}"), LIMIT),
    "namespaces": (
        "{% set a = namespace() %}{% set b = namespace(x=a, y=a) %}{{ b }}", BROKEN
    ),
    "namespaces in a list": ("{% set a = namespace() %}{{ [a] }}", LIMIT),
    "batch": ("{{ [1]|batch(10**9, 0)|list }}", LIMIT),
    "slice": ("{{ [1]|slice(10**9)|list }}", LIMIT),
    "center": ("{{ 'a'|center(10**9) }}", LIMIT),
    "center of a block": ("{% filter center(10**9) %}x{% endfilter %}", LIMIT),
    "center method": ("{{ 'a'.center(10**9) }}", LIMIT),
    "ljust": ("{{ 'a'.ljust(10**9) }}", LIMIT),
    "zfill": ("{{ 'a'.zfill(10**9) }}", LIMIT),
    "indent": ("{{ ('\n' * 100000)|indent(10**6) }}", LIMIT),
    "indent lines": ("{{ ('\n' * 1000000)|indent(900) }}", LIMIT),
    "replace": ("{{ ('a' * 100000).replace('a', 'b' * 100000) }}", LIMIT),
    "replace nothing": ("{{ ('a' * 1000000).replace('', 'b' * 100000) }}", LIMIT),
    "replace filter": ("{{ ('a' * 100000)|replace('a', 'b' * 100000) }}", LIMIT),
    "join method": ("{{ ('a' * 100000).join(['x'] * 100000) }}", LIMIT),
    "join of a generator": ("{{ range(99999)|map('string')|join('a' * 100000) }}", LIMIT),
    "percent width": ("{{ '%1000000000d' % 1 }}", LIMIT),
    "percent computed width": ("{{ '%*d' % (1000000000, 1) }}", LIMIT),
    "percent key": ("{{ '%(a)999999999s' % {'a': 1} }}", LIMIT),
    "percent nested key": ("{{ '%(((b)))999999999s' % {'((b))': 1} }}", LIMIT),
    "percent precision": ("{{ '%.999999999f'|format(1) }}", LIMIT),
    "percent many times": ("{{ ('%(a)s' * 100000) % {'a': 'x' * 1000000} }}", LIMIT),
    "format width": ("{{ '{:>1000000000}'.format('a') }}", LIMIT),
    "format computed width": ("{{ '{:{}}'.format('a', 10**9) }}", LIMIT),
    "format many times": ("{{ ('{0}' * 100000).format('x' * 1000000) }}", LIMIT),
    "format_map": ("{{ '{a:>1000000000}'.format_map({'a': 1}) }}", LIMIT),
    "escaped percent": ("{{ ('%999999999d'|e) % 1 }}", LIMIT),
    "JSON indent": ("{{ [1]|tojson(indent=10**9) }}", LIMIT),
    "time": ("{{ strftime_now('%0999999999d') }}", BROKEN),
}
NESTING = {
    "macro of itself": ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", LIMIT),
    "loop of itself": ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", LIMIT),
    "parentheses": ("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}", LIMIT),
    "lists": ("{{ " + "[" * 200 + "]" * 200 + " }}", LIMIT),
    "not": ("{{ " + "not " * 20_000 + "1 }}", LIMIT),
    "if": ("{% if 1 %}" * 5000 + "{% endif %}" * 5000, LIMIT),
    "elif": ("{% if 0 %}" + "{% elif 0 %}" * 10_000 + "{% endif %}", LIMIT),
    "sum": ("{{ " + "1+" * 40_000 + "1 }}", LIMIT),
    "attributes": ("{{ a" + ".b" * 40_000 + " }}", LIMIT),
    "filters": ("{{ 1" + "|abs" * 20_000 + " }}", LIMIT),
    "blocks": ("{% for x in [1] %}" * 25 + "{% endfor %}" * 25, BROKEN),
    "outputs": ("{{ a }}" * 15_000, LIMIT),
    "too long": ("x" * 10**6, LIMIT),
    "open comments": ("{#" * 50_000, BROKEN),
    "open braces": ("{{" * 50_000, LIMIT),
    "blanks": ("{% if 1 -%}" + " " * 120_000, BROKEN),
    "digits": ("{{ " + "9" * 100_000 + " }}", BROKEN),
}
ESCAPES = {
    "class": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", BROKEN),
    "class by item": ("{{ ''['__class__']['x'] }}", BROKEN),
    "class by filter": ("{{ ''|attr('__class__') }}", BROKEN),
    "class by map": ("{{ ['']|map(attribute='__class__')|first }}", ""),
    "class by format": ("{{ '{0.__class__.__mro__}'.format('') }}", BROKEN),
    "class by format_map": ("{{ '{a.__class__}'.format_map({'a': 1}) }}", ""),
    "globals": ("{{ raise_exception.__globals__['os'] }}", BROKEN),
    "init": ("{{ namespace.__init__.__globals__ }}", BROKEN),
    "cycler": ("{{ cycler.__init__.__globals__ }}", BROKEN),
    "self": ("{{ self._TemplateReference__context.environment }}", BROKEN),
    "receiver": ("{{ messages[0].items.__self__ }}", ""),
    "mro": ("{{ dict.mro() }}", BROKEN),
    "lipsum": ("{{ lipsum(10**6) }}", BROKEN),
    "include": ("{% include '/etc/passwd' %}", BROKEN),
    "import": ("{% import 'os' as os %}", BROKEN),
    "extends": ("{% extends 'x' %}", BROKEN),
    "block": ("{% block x %}{% endblock %}", BROKEN),
    "append": ("{{ messages.append(1) }}", BROKEN),
    "pop": ("{{ messages[0].pop('role') }}", BROKEN),
    "update": ("{{ messages[0].update({'role': 1}) }}", BROKEN),
    "objects": ("{{ messages|map('upper') }}", BROKEN),
    "functions": ("{{ range }}", BROKEN),
}
HOSTILE = {
    f"{kind}: {name}": case
    for kind, cases in (
        ("time", TIME), ("memory", MEMORY), ("nesting", NESTING), ("escape", ESCAPES),
    )
    for name, case in cases.items()
}  # fmt: skip
