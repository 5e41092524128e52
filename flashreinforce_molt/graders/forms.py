r"""One spelling for each answer: `\dfrac12 \text{ cm}` and `\frac{1}{2}` become the same text, the unit set apart.

Equal texts must mean equal answers, so nothing is removed that can carry meaning: `1 1/2` is not `11/2`, `(100,200)`
is not `100200`, `2m` is not `2`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from flashreinforce_molt.graders.boxed import unwrap_boxes


@dataclass(frozen=True)
class Form:
    """A cleaned answer: LaTeX without its unit, and the name of the unit where it is a known one."""

    text: str
    unit: str = ""


_CHARACTERS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "÷": "/",
        "⁄": "/",
        "∕": "/",
        "°": r"^\circ ",
        "π": r"\pi ",
        "θ": r"\theta ",
        "√": r"\sqrt ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "⁰": "^{0}",
        "¹": "^{1}",
        "²": "^{2}",
        "³": "^{3}",
        "⁴": "^{4}",
        "％": "%",
        "’": "'",
        "\t": " ",
        "\n": " ",
        "\r": " ",
        "\u00a0": " ",
        "\u2009": r"\,",
        "\u202f": r"\,",
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    }
)

_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|m?left|m?right|[bB]igg?[lrm]?)(?=[^a-zA-Z]|\\)\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits|!)\s*", ""),
        (r"\\(?:d|t|c)frac(?![a-zA-Z])", r"\\frac"),
        (r"\\mathbb\{R\}|\\mathbb R", r"(-\\infty,\\infty)"),
        (
            r"\\(?:math|text)(?:rm|bf|it|sf|tt|normal|bb|cal)(?![a-zA-Z])|\\(?:mbox|hbox|operatorname)\*?",
            r"\\text",
        ),
        (r"\\leq(?:slant)?(?![a-zA-Z])", r"\\le"),
        (r"\\geq(?:slant)?(?![a-zA-Z])", r"\\ge"),
        (r"\\neq(?![a-zA-Z])", r"\\ne"),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:varnothing|O)(?![a-zA-Z])", r"\\emptyset"),
        (r"\\(?:lbrace)(?![a-zA-Z])", r"\\{"),
        (r"\\(?:rbrace)(?![a-zA-Z])", r"\\}"),
        (r"\\(?:degrees?)(?![a-zA-Z])", r"^\\circ"),
        (r"\\circ", r"\\circ "),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})", r"^\\circ "),
        (r">=", r"\\ge "),
        (r"<=", r"\\le "),
        (r"\*\*", "^"),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"\\\{\s*\\\}", r"\\emptyset"),
        (r"\{,\}", ","),
        (r"(?<=\d)\\,(?=\d{3}(?!\d))", ""),  # a thin space between thousands
        (r"(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|~", " "),
        (r"\\text\{percent\}|\\?%|(?<=\d)\s*percent\b", r"\\%"),
        (r"\\(frac|binom)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}"),
        (r"\\(frac|binom)\s*(\d)\s*\{", r"\\\1{\2}{"),
        (r"\\sqrt\s*(\d+|[a-zA-Z])", r"\\sqrt{\1}"),
        (r"([_^])\s*([0-9a-zA-Z])", r"\1{\2}"),
    )
)

_ESCAPED_TWICE = re.compile(r"\\{2,}(?=[a-zA-Z]{2})")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))
_PREFIX = re.compile(
    r"(?:so |thus |hence )?(?:the |our )?(?:final )?answer(?: is|:|=)\s*:?\s*", re.IGNORECASE
)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_CONJUNCTION = re.compile(r",?\s*(?<![a-zA-Z\\])(or|and)(?![a-zA-Z])\s*")
_LOOSE_SPACE = re.compile(r"(?<![0-9a-zA-Z]) | (?![0-9a-zA-Z])")
_GROUPED_NUMBER = re.compile(r"([+-]?\d{1,3})((?:[, ]\d{3})+)(\.\d+)?(\\%)?")
_CHOICE = re.compile(r"\(([A-Z])\)")


def clean(answer: str) -> Form:
    """The one spelling of an answer."""
    text = _strip_delimiters(unwrap_boxes(answer).translate(_CHARACTERS))
    if "matrix" not in text:  # whose rows end with two backslashes
        text = _ESCAPED_TWICE.sub(r"\\", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    unwrapped = _TEXT.sub(r"\1", text)
    if prefix := _PREFIX.match(unwrapped):
        text = _strip_delimiters(unwrapped[prefix.end() :])
    elif whole := _TEXT.fullmatch(text):
        text = whole[1]
    text, unit = _split_unit(text.strip())
    text = _TEXT.sub(r"\1", text)
    text = _CONJUNCTION.sub(lambda match: r"\lor " if match[1] == "or" else r"\land ", text)
    text = _LOOSE_SPACE.sub("", " ".join(text.split()))
    if grouped := _GROUPED_NUMBER.fullmatch(text):
        text = grouped[1] + re.sub("[, ]", "", grouped[2]) + (grouped[3] or "") + (grouped[4] or "")
    if text.casefold() in ("all real numbers", "all reals"):
        text = r"(-\infty,\infty)"
    if choice := _CHOICE.fullmatch(text):
        text = choice[1]
    return Form(text, unit)


def _strip_delimiters(text: str) -> str:
    while True:
        before = text
        text = text.strip()
        for opening, closing in _DELIMITERS:
            if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening + closing):
                text = text[len(opening) : len(text) - len(closing)]
        text = text.removeprefix("$").removesuffix("$") if text.count("$") == 1 else text
        text = text.rstrip().removesuffix(".").removesuffix(r"\\")
        if text == before:
            return text


_UNIT_NAMES = {
    synonym: name
    for name, synonyms in {
        "mm": "millimeter millimetre",
        "cm": "centimeter centimetre",
        "m": "meter metre",
        "km": "kilometer kilometre",
        "in": "inch inches",
        "ft": "foot feet",
        "yd": "yard",
        "mi": "mile",
        "mg": "milligram",
        "g": "gram",
        "kg": "kilogram",
        "lb": "pound",
        "oz": "ounce",
        "s": "sec second",
        "min": "minute",
        "h": "hr hour",
        "day": "",
        "week": "",
        "month": "",
        "year": "yr",
        "ml": "milliliter millilitre",
        "l": "liter litre",
        "gal": "gallon",
        "dollar": "",
        "cent": "",
        "euro": "",
        "degree": "deg",
        "rad": "radian",
        "celsius": "",
        "fahrenheit": "",
        "hz": "hertz",
        "n": "newton",
        "j": "joule",
        "w": "watt",
        "v": "volt",
    }.items()
    for synonym in (name, *synonyms.split())
}
_NO_UNITS = {
    "pi",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "log",
    "ln",
    "exp",
    "inf",
    "infinity",
    "mod",
    "or",
    "and",
    "to",
    "choose",
}
_EXPONENT = r"(?:\^\{?([23])\}?)?"
_QUANTITY_END = r"(?<=[0-9}).!])"
_TEXT_UNIT = re.compile(rf"(?<=\S)\s*\\text\{{\s*([a-zA-Z][a-zA-Z ./-]*?)[.\s]*\}}{_EXPONENT}$")
_BARE_UNIT = re.compile(
    rf"{_QUANTITY_END}\s*([a-zA-Z]{{2,}}(?:[ /][a-zA-Z]+)*|[a-zA-Z]/[a-zA-Z]+)\.?{_EXPONENT}$"
)
_QUANTITY = re.compile(rf".*{_QUANTITY_END}\s*", re.DOTALL)
_DEGREE_UNIT = re.compile(rf"{_QUANTITY_END}\s*\^\\circ\s*(?:\\text\{{\s*)?([CF]?)\s*\}}?$")
_MONEY = re.compile(r"^([+-]?)\s*(?:\\\$|\\text\{\\\$\}|€|£)\s*(?=[\d.])")
_BASE = re.compile(r"^(\d+)_\{(\d+)\}$")


def _split_unit(text: str) -> tuple[str, str]:
    """Text without its unit, and the unit's name; an unknown unit behind a quantity is removed without a name."""
    if money := _MONEY.match(text):
        currency = {"€": "euro", "£": "sterling"}.get(money.group().strip()[-1], "dollar")
        return money[1] + text[money.end() :], currency
    if degrees := _DEGREE_UNIT.search(text):
        return text[: degrees.start()], {"C": "celsius", "F": "fahrenheit"}.get(degrees[1], "degree")
    if base := _BASE.match(text):
        return base[1], f"base {int(base[2][:9])}"
    for pattern in (_TEXT_UNIT, _BARE_UNIT):
        unit = pattern.search(text)
        if unit is None or _NO_UNITS & set(unit[1].lower().split()):
            continue
        name, rest = _unit_name(unit[1], unit[2]), text[: unit.start()]
        # Unknown words are a unit behind a quantity only: `x \text{ is even}` is no x.
        if name or (_QUANTITY.fullmatch(rest) and not re.fullmatch("[a-zA-Z]/.*", unit[1])):
            return rest, name
    return text, ""


def _unit_name(text: str, exponent: str | None) -> str:
    """`square feet` -> `ft^2`, `miles per hour` -> `mi/h`; empty when it is not known."""
    text = {"mph": "mile/hour", "kmh": "km/hour", "kph": "km/hour"}.get(text.lower(), text.lower())
    names = []
    for part in re.split(r"\s*/\s*|\s+per\s+", text.replace(".", "").strip()):
        words = part.split()
        if len(words) == 2 and words[0] in ("square", "sq", "cubic", "cu"):
            exponent, words = "2" if words[0].startswith("s") else "3", words[1:]
        word = " ".join(words)
        name = _UNIT_NAMES.get(word) or _UNIT_NAMES.get(word.removesuffix("s"))
        if name is None:
            return ""
        names.append(name)
    return "/".join(names) + (f"^{exponent}" if exponent else "")
