"""Which answers to MATH and GSM8K count as equal, where an answer is found in a text, and that
nothing of it is run.
"""

import pytest

from reading.answers_math import boxed, equal, final_answer, last_number

EQUAL = [
    ("0.5", r"\frac12"),
    ("1/2", r"\frac{1}{2}"),
    (r"\dfrac{2}{4}", r"\tfrac{1}{2}"),
    (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2"),
    (r"2\sqrt{2}", r"\sqrt8"),
    ("10,000", "10000"),
    ("8{,}880", "8880"),
    ("x=5", "5"),
    ("f(x) = x^2", "x^2"),
    ("$f(f(10))=1$", "1"),
    (r"5\text{ cm}", "5"),
    (r"5\text{ cm}^2", "5"),
    ("12 square inches", "12"),
    (r"50\%", "50"),
    (r"90^\circ", "90"),
    (r"\$18.00", "18"),
    ("18.", "18"),
    ("1,2", "2,1"),
    (r"\{1,2\}", r"\{2, 1\}"),
    ("(1, 2)", r"\left( 1, \frac{4}{2} \right)"),
    ("x^2+2x+1", "(x+1)^2"),
    ("2(a - b)", "2a-2b"),
    (r"\frac{3}{4}\pi", r"\frac{3\pi}{4}"),
    (r"\sqrt[3]{8}", "2"),
    ("2^{-1}", ".5"),
    ("10^{-3}", "0.001"),
    (r"\text{(A)}", "(A)"),
    (r"\text{Tuesday}", "tuesday"),
    (r"3 \cdot 4", "12"),
    ("2^{100}", "1267650600228229401496703205376"),
    ("-(-3)", "3"),
    ("[2,5)", "[2, 5)"),
    (r"(-\infty, 2)", r"(-\infty,2)"),
]
DIFFERENT = [
    ("0.333", r"\frac13"),
    ("-3", "3"),
    ("(1,2)", "(2,1)"),
    ("[2,5)", "[2,5]"),
    ("1,2", "1,2,3"),
    ("1,1", "1,2"),
    ("x^2+2x", "(x+1)^2"),
    ("x", "y^2"),
    ("2x + y = 0", "3x = 0"),
    ("10000000001", "10000000000"),
    ("", "1"),
    ("   ", "1"),
    ("Monday", "Tuesday"),
    ("x^12", "x^{12}"),
    (r"\frac{1}{0}", "1"),
]
HOSTILE = [
    "(" * 3000,
    "{" * 300,
    "9^{9^{9^{9^9}}}",
    "9**9**9**9",
    "__import__('os').system('false')",
    "\\frac" * 200,
    "1" * 10000,
    "-" * 3900,
    r"\sqrt[0]{2}",
    "0^{-1}",
    "(-8)^{1/3}",
    "1e999",
    "\x00",
    "１２",
]


@pytest.mark.parametrize("answer, target", EQUAL)
def test_equal_by_value(answer, target):
    assert equal(answer, target) and equal(target, answer) and equal(target, target)


@pytest.mark.parametrize("answer, target", DIFFERENT)
def test_not_equal(answer, target):
    assert not equal(answer, target)


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_model_writes_is_read_in_no_time_and_never_run(text):
    assert not equal(text, "1") and not equal(text, "x+1")
    assert not equal(final_answer(text), "x+1")


def test_the_last_box_counts_and_braces_match():
    assert boxed(r"so \boxed{1} or rather \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert boxed(r"$\boxed 7$") == "7" and boxed(r"\fbox{a}") == "a"
    assert boxed(r"\boxed{1") is None and boxed("none") is None


@pytest.mark.parametrize(
    "text, answer",
    [
        (r"First $x=2$. Then \boxed{3}. So 4.", "3"),
        ("The final answer is $x = 12$. I hope it is correct.", "$x = 12$"),
        ("We get $3$ and then $7$", "7"),
        ("It makes 3 and 4.50", "4.50"),
        ("The answer is 3.5", "3.5"),
        ("nothing", ""),
    ],
)
def test_where_the_final_answer_stands(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "text, number",
    [
        ("She makes $1,234.50 a day.", "1234.50"),
        ("9 * 2 = 18", "18"),
        ("It is -5.", "-5"),
        ("18...", "18"),
        ("-$3", "-3"),
        ("no", None),
        ("10 eggs, 3,000", "3000"),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number
