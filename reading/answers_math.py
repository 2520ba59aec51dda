"""Answers to MATH and GSM8K compared by value: numbers, fractions, roots, simple expressions, and
lists of them.

LaTeX is read by a small parser that knows arithmetic and nothing else; the text is a model's and is
never evaluated as code. Two expressions with variables are equal where they agree at a few fixed
points. What the parser cannot read is compared as text. Left out: equations, matrices, inequalities
by meaning, functions such as sin.
"""

import re
from fractions import Fraction

POINTS = (1.2345, -0.789, 2.5173)  # where expressions with variables are compared
LARGEST = 4000  # bits of a number that is still kept exactly, and characters of an answer that are read
TOLERANCE = 1e-9
NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")
TOKEN = re.compile(r"\d+\.\d+|\.\d+|\d+|\\[a-zA-Z]+|[a-zA-Z]|[-+*/^(){}\[\]_]")
DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|,|!|;|:|quad|%|\$|circ)(?![a-zA-Z])|\^\s*\{?\s*\\circ\s*\}?|[$%]|\\ |~|°"
)


def boxed(text):
    """What stands in the last \\boxed{} of a text, braces matched, or None."""
    found = re.search(r"\\(?:boxed|fbox)\s*(?:\{|(\S))(?!.*\\(?:boxed|fbox))", text, re.DOTALL)
    if not found or found.group(1):
        return found and found.group(1)
    depth = 1
    for i in range(found.end(), len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if not depth:
            return text[found.end() : i]
    return None


def last_number(text):
    """The last number in a text, without thousands commas and dollar signs, or None."""
    found = NUMBER.findall(text)
    return found[-1].replace(",", "").replace("$", "") if found else None


def final_answer(text):
    """The answer that a solution ends with: in the last box, behind "answer is", in the last
    formula, or the last number.
    """
    inside = boxed(text)
    if inside is not None:
        return inside
    said = re.findall(r"answer\s+is\s*:?\s*(.+?)(?:\.\s|\.?$)", text, re.IGNORECASE | re.MULTILINE)
    if said:
        return said[-1].strip(" *")
    formulas = re.findall(r"\$([^$]+)\$", text)
    return formulas[-1] if formulas else last_number(text) or ""


# ------------------------------------------------------------------------------------------ parsing


class Unreadable(Exception):
    """The text is not arithmetic."""


def simplify(value):
    """`value` as a Fraction where it is small enough for one, else a float. Raises Unreadable where
    it has none.
    """
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) <= LARGEST:
            return value
        value = float(value)
    if isinstance(value, complex) or value != value or abs(value) == float("inf"):
        raise Unreadable
    return value


def power(base, exponent):
    """base ** exponent, exact for whole exponents as far as simplify keeps it."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length()) <= LARGEST:
            return base ** int(exponent)
    root = float(base) ** float(exponent)
    if isinstance(root, float) and isinstance(base, Fraction) and root < 2**50 and root == int(root) and exponent:
        whole = Fraction(int(root))  # sqrt(16) is 4 exactly
        inverse = 1 / Fraction(exponent).limit_denominator(12)
        return whole if inverse.denominator == 1 and 0 < inverse <= 12 and whole ** int(inverse) == base else root
    return root


class Parser:
    """Recursive descent over TOKENs; `variables` maps letters to numbers."""

    def __init__(self, text, variables):
        self.tokens, self.variables, self.at = TOKEN.findall(text), variables, 0
        if "".join(self.tokens) != re.sub(r"\s", "", text):
            raise Unreadable

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, wanted=None):
        token = self.peek()
        if token is None or wanted not in (None, token):
            raise Unreadable
        self.at += 1
        return token

    def all(self):
        value = self.sum()
        if self.peek() is not None:
            raise Unreadable
        return value

    def sum(self):
        value = self.product()
        while self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            value = simplify(value + sign * self.product())
        return value

    def product(self):
        value = self.signed()
        while self.peek() not in (None, "+", "-", ")", "}", "]"):
            if self.peek() in ("/", r"\div"):
                self.take()
                value = simplify(value / self.signed())
            else:
                if self.peek() in ("*", r"\cdot", r"\times"):
                    self.take()
                value = simplify(value * self.signed())
        return value

    def signed(self):
        if self.peek() in ("+", "-"):
            return self.signed() if self.take() == "+" else -self.signed()
        base = self.atom()
        if self.peek() == "^":
            self.take()
            return simplify(power(base, self.argument(signs=True)))
        return base

    def argument(self, signs=False):
        """What a command or a power takes: a group, or a single digit or letter."""
        if self.peek() == "{":
            return self.group("{", "}")
        if signs and self.peek() == "-":
            self.take()
            return -self.argument()
        token = self.peek()
        if token and token.isdigit() and len(token) > 1:  # \frac12 is one half, x^12 is x^1 2
            self.tokens[self.at : self.at + 1] = list(token)
        return self.atom()

    def group(self, opening, closing):
        self.take(opening)
        value = self.sum()
        self.take(closing)
        return value

    def atom(self):
        token = self.peek()
        if token in ("(", "{", "["):
            return self.group(token, {"(": ")", "{": "}", "[": "]"}[token])
        self.take()
        if token[0].isdigit() or token[0] == ".":
            return simplify(Fraction(token))
        if token in (r"\frac", r"\dfrac", r"\tfrac"):
            above = self.argument()
            return simplify(above / self.argument())
        if token == r"\sqrt":
            degree = self.group("[", "]") if self.peek() == "[" else Fraction(2)
            return simplify(power(self.argument(), 1 / degree))
        if token == r"\pi":
            return 3.141592653589793
        if token in self.variables:
            return self.variables[token]
        raise Unreadable


def values(text):
    """Values of an expression, one at each of POINTS. Raises Unreadable."""
    names = sorted(set(re.findall(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])", re.sub(r"\\[a-zA-Z]+", " ", text))))
    try:
        return [Parser(text, {name: point + 0.1 * n for n, name in enumerate(names)}).all() for point in POINTS]
    except (ArithmeticError, RecursionError, ValueError):
        raise Unreadable from None


# ---------------------------------------------------------------------------------------- comparing


def clean(text):
    """An answer without what carries no value: spacing, dollar and per cent signs, degrees, units,
    "x =" and thousands commas.
    """
    text = DROPPED.sub(
        " ", text.strip().rstrip(".").replace("{,}", ",").replace(r"\{", r"\lbrace ").replace(r"\}", r"\rbrace ")
    )
    text = re.sub(r"(?<=\d)\s*\\(?:text|mbox|mathrm)\s*\{[^{}]*\}(?:\^\{?\d\}?)?$", "", text.strip())
    text = re.sub(r"\\(?:text|mbox|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<=\d)\s+(?:[a-z]{2,}\s*)+$", "", text.strip())  # "12 square inches"
    text = re.sub(r"^[a-zA-Z](?:\([^=]*\))?\s*=\s*", "", text.strip())
    text = re.sub(r"(?<=\d),(?:\s*\\!)?(?=\d{3}(?!\d))", "", text) if not re.search(r"[(\[]|lbrace", text) else text
    return text.strip().replace(r"\lbrace", "{").replace(r"\rbrace", "}")


def split(text):
    """(opening, closing, parts) of a list: "(1, 2)", "[2, 5)", "{1, 2}" or bare "1, 2"; one part
    where it is none.
    """
    brackets = ("", "")
    if text[:1] in "([{" and text[-1:] in ")]}" and len(text) > 1 and top_commas(text[1:-1]):
        brackets, text = (text[0], text[-1]), text[1:-1]
    cuts = [-1, *top_commas(text), len(text)]
    return (*brackets, [text[a + 1 : b].strip() for a, b in zip(cuts, cuts[1:])])


def top_commas(text):
    """Places of the commas outside all brackets."""
    depth, found = 0, []
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            found.append(i)
    return found


def same_value(a, b):
    """True where two expressions have the same value, or else the same text but for spaces and
    case.
    """
    try:
        return all(
            (
                x == y
                if isinstance(x, Fraction) and isinstance(y, Fraction)
                else abs(x - y) <= TOLERANCE * max(1, abs(x), abs(y))
            )
            for x, y in zip(values(a), values(b))
        )
    except (Unreadable, OverflowError):
        plain = [re.sub(r"[\s{}()]", "", t.replace("dfrac", "frac").replace("tfrac", "frac")).lower() for t in (a, b)]
        return bool(plain[0]) and plain[0] == plain[1]


def equal(answer, target):
    """True where an answer is the target's value. Lists in parentheses or brackets keep their
    order, other lists need not.
    """
    if len(answer) > LARGEST or not answer.strip():
        return False
    (opening, closing, parts), (wanted_opening, wanted_closing, wanted) = split(clean(answer)), split(clean(target))
    if (opening, closing) != (wanted_opening, wanted_closing) or len(parts) != len(wanted):
        return False
    if opening in ("", "{"):
        for part in parts:
            match = next((i for i, other in enumerate(wanted) if same_value(part, other)), None)
            if match is None:
                return False
            wanted.pop(match)
        return True
    return all(map(same_value, parts, wanted))
