"""A package's chat template: Jinja in a sandbox, with every size and number of steps bounded.

Owns the environment that Hugging Face templates expect (their whitespace rules, `tojson`, `raise_exception`,
`strftime_now`, the `generation` tag, loop controls) and its limits. Must not know messages or tokens. A
template comes with a package, so it is less trusted than code and more than a request: the limits stop
accidents and simple attacks on time and memory, and the sandbox stops access to anything else.
"""

import contextvars
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# Published templates stay below 32 KiB; their output is about as long as the messages.
TEMPLATE_CHARS_MAX = 256 * 1024
OUTPUT_CHARS_MAX = 8 * 1024 * 1024
# Loop rounds and calls in one rendering: about ten for each message in the templates we know.
STEPS_MAX = 100_000
INDENT_MAX = 64
INTEGER_BITS_MAX = 256
MESSAGE_CHARS_MAX = 300

# These make a long string out of a short one and a number.
_REFUSED_STRING_METHODS = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "translate"}
)
_REFUSED_FILTERS = (
    "attr",
    "batch",
    "center",
    "filesizeformat",
    "format",
    "pprint",
    "random",
    "slice",
    "urlize",
)
_REFUSED_GLOBALS = ("cycler", "joiner", "lipsum")
_WIDE_CONVERSION = re.compile(r"%[^%a-zA-Z]*[\d*]")


class TemplateError(ValueError):
    """A template that cannot be loaded: too long, or no valid Jinja."""


class ChatError(ValueError):
    """A chat that cannot be rendered; the message is one sentence for the client."""


# Steps left to the rendering that runs in this thread; a template holds no state of its own.
_steps_left: contextvars.ContextVar[int] = contextvars.ContextVar("_steps_left")


class BoundedTemplate:
    """A compiled template.

    Invariants: immutable, so that threads may render at the same time. `render` reads nothing but its
    arguments and the clock it was given.
    """

    def __init__(self, source: str, now: Callable[[], datetime]) -> None:
        """
        Raises:
            TemplateError: when the template is too long or is no Jinja.
        """
        if len(source) > TEMPLATE_CHARS_MAX:
            raise TemplateError(f"The chat template has {len(source)} characters, more than {TEMPLATE_CHARS_MAX}.")
        environment = _Sandbox(now)
        try:
            tree = _Bounds().visit(environment.parse(source))
            tree.set_environment(environment)
            self._template = environment.from_string(tree)
        except (jinja2.TemplateError, SyntaxError, RecursionError) as error:
            raise TemplateError(f"The chat template cannot be compiled: {_first_line(error)}") from error

    def render(self, **variables: object) -> str:
        """
        Raises:
            ChatError: when the template refuses the messages, fails, or goes over a limit.
        """
        _steps_left.set(STEPS_MAX)
        try:
            return "".join(_bounded_chunks(self._template.generate(**variables)))
        except ChatError:
            raise
        except Exception as error:  # whatever a template does wrong ends its request, not the server
            raise ChatError(f"The chat template cannot render these messages: {_first_line(error)}") from error


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what a model wrote, for training; here its body stands as it is."""

    tags = {"generation"}  # noqa: RUF012  # the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with sizes checked beforehand where one operation could make a huge value."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        extensions = ["jinja2.ext.loopcontrols", _GenerationTag]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        for name in _REFUSED_GLOBALS:
            del self.globals[name]
        self.filters.update(
            tojson=_to_json, indent=_indent, join=_make_join(self.filters["join"]), replace=_replace,
            counted=_counted, bounded=_bounded,
        )  # fmt: skip
        self.globals.update(raise_exception=_refuse, strftime_now=lambda layout: now().strftime(_bounded(layout)))

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, str) and attribute in _REFUSED_STRING_METHODS:
            return self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, str) and argument in _REFUSED_STRING_METHODS:
            return self.unsafe_undefined(obj, argument)
        return super().getitem(obj, argument)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _spend()
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "replace" and len(args) > 1:
            _check_replaced(owner, *args)
        if isinstance(owner, str) and name == "join" and args:
            args = (_bounded_items(owner, args[0]), *args[1:])
        return _bounded(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str) and _WIDE_CONVERSION.search(left):
            raise ChatError("The chat template formats with a width, which is not allowed.")
        if operator == "*" and not isinstance(left, (int, float)):
            left, right = right, left
        if operator == "*" and isinstance(left, int) and hasattr(right, "__len__"):
            _check_size(left * len(right))
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_size(len(left) + len(right))
        if operator in {"*", "**"} and isinstance(left, int) and isinstance(right, int):
            factor = abs(right) if operator == "**" else 1
            _check_size(left.bit_length() * factor + right.bit_length(), INTEGER_BITS_MAX)
        return super().call_binop(context, operator, left, right)


class _Bounds(NodeTransformer):
    """Puts the limits into the syntax tree, where a template cannot rebind them."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  # the visitor finds it by this name
        if node.recursive:
            # Its inner rounds would go uncounted.
            raise TemplateError("The chat template has a recursive loop, which is not allowed.")
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), "counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "bounded")

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, "bounded")
        return node


def _filtered(node: nodes.Expr | None, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno if node is not None else 1)


def _bounded_chunks(chunks: Iterable[str]) -> Iterator[str]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        _check_size(size)
        yield chunk


def _spend() -> None:
    left = _steps_left.get() - 1
    if left < 0:
        raise ChatError(f"The chat template takes more than {STEPS_MAX} steps for these messages.")
    _steps_left.set(left)


def _check_size(size: int, limit: int = OUTPUT_CHARS_MAX) -> None:
    if size > limit:
        raise ChatError(f"The chat template makes a value of size {size} from these messages, more than {limit}.")


@jinja2.pass_context
def _counted(_context: jinja2.runtime.Context, items: Iterable[object]) -> Iterator[object]:
    """Pass a loop's items through, one step each. Taking the context keeps it from being constant-folded."""
    for item in items:
        _spend()
        yield item


def _bounded(value: Any) -> Any:
    if isinstance(value, (str, list, tuple)):
        _check_size(len(value))
    return value


def _bounded_items(separator: str, values: Iterable[object]) -> list[str]:
    size = 0
    texts = []
    for value in values:
        texts.append(str(value))
        size += len(separator) + len(texts[-1])
        _check_size(size)
    return texts


def _make_join(join: Callable[..., Any]) -> Callable[..., Any]:
    """Jinja's own filter, after a look at the sizes."""

    @jinja2.pass_eval_context
    def bounded_join(context: Any, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
        items = list(value)
        _bounded_items(str(d), items)
        return join(context, items, d, attribute)

    return bounded_join


def _check_replaced(source: str, old: str, new: str, count: int = -1) -> None:
    times = source.count(old) if count < 0 else min(source.count(old), count)
    _check_size(len(source) + times * len(new))


def _replace(text: object, old: str, new: str, count: int | None = None) -> str:
    source, times = str(text), -1 if count is None else count
    _check_replaced(source, old, new, times)
    return source.replace(old, new, times)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    mark = width if isinstance(width, str) else " " * min(width, INDENT_MAX + 1)
    _check_size(len(mark), INDENT_MAX)
    lines = text.splitlines()
    shown = [line if (not line and not blank) or (number == 0 and not first) else mark + line
             for number, line in enumerate(lines)]  # fmt: skip
    return "\n".join(shown)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's `tojson`: plain JSON, not escaped for HTML as Jinja's own is."""
    _check_size(indent or 0, INDENT_MAX)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> NoReturn:
    raise ChatError(str(message)[:MESSAGE_CHARS_MAX])


def _first_line(error: BaseException) -> str:
    """An exception's message in bounded length; its type's name where it has none."""
    return (str(error) or type(error).__name__).splitlines()[0][:MESSAGE_CHARS_MAX]
