"""Tables: cells are safe for Markdown and a terminal, columns stand below each other, figures are
shown as they are.
"""

import csv
import math
import re

import pytest

from experiment import tables


@pytest.mark.parametrize(
    "text, safe",
    [
        ("plain text", "plain text"),
        ("a|b", r"a\|b"),
        ("two\nlines\r\n and\ttabs", "two lines and tabs"),
        ("\x1b[31mred", "\ufffd\\[31mred"),
        ("<b>bold</b>", r"\<b\>bold\</b\>"),
        ("`c` *b* _i_ [l](u)", r"\`c\` \*b\* \_i\_ \[l\](u)"),
        ("back\\slash", r"back\\slash"),
        (r"\|", r"\\\|"),
        ("&lt; ~s~ $x$", r"\&lt; \~s\~ \$x\$"),
        ("你好，世界", "你好，世界"),
        ("caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600"),
        ("\u202eright to left", "\ufffdright to left"),
        ("nul\0", "nul\ufffd"),
        (7, "7"),
        ("", ""),
    ],
)
def test_text_is_made_safe_for_a_table_and_a_terminal(text, safe):
    assert tables.escape(text) == safe


@pytest.mark.parametrize(
    "text, kept", [("|" * 50, 4), ("x" * 50, 9), ("汉" * 50, 4), ("y" * 100_000, 9), ("e" + "\u0301" * 500, 9)]
)
def test_long_text_is_cut_to_the_columns_of_a_terminal_and_says_so(text, kept):
    cut = re.sub(r"\\(.)", r"\1", tables.escape(text, 10))
    assert cut.endswith("…") and len(cut) == kept + 1 and text.startswith(cut[:-1])
    assert tables.escape("x" * 10, 10) == "x" * 10 and tables.escape("汉" * 5, 10) == "汉" * 5


def test_width_is_that_of_a_terminal():
    assert [tables.width(text) for text in ("abc", "汉字", "（）", "e\u0301", "→", "")] == [3, 4, 4, 1, 1, 0]


def test_table_rows_have_one_cell_for_each_column():
    assert tables.table(["a", "long head"], [["x", 1], ["汉字", "y"]]).splitlines() == [
        "| a    | long head |",
        "|------|-----------|",
        "| x    | 1         |",
        "| 汉字 | y         |",
    ]
    assert tables.table(["a", "b"], []).splitlines() == ["| a   | b   |", "|-----|-----|"]


@pytest.mark.parametrize(
    "value, interval, shown",
    [
        (0.5, None, "50.0%"),
        (0.12345, [0.1, 0.2], "12.3% [10.0%, 20.0%]"),
        (-0.25, None, "-25.0%"),
        (math.nan, [0.1, 0.2], "-"),
        (None, None, "-"),
        (0.0, None, "0.0%"),
        (0.5, [None, None], "50.0%"),
    ],
)
def test_share_is_shown_as_per_cent(value, interval, shown):
    assert tables.share(value, interval) == shown


@pytest.mark.parametrize(
    "value, interval, shown",
    [
        ("0.12345", None, "0.123"),
        (2, None, "2.000"),
        ("", None, "-"),
        (None, [0, 1], "-"),
        ("nan", None, "-"),
        (0.5, [0.25, 0.75], "0.500 [0.250, 0.750]"),
    ],
)
def test_number_is_shown_with_three_digits(value, interval, shown):
    assert tables.number(value, interval=interval) == shown


def test_metrics_that_are_no_shares_are_numbers():
    assert [tables.metric(key, 0.5, [0.25, 1]) for key in ("J", "nths", "mean_words")] == [
        "50.0% [25.0%, 100.0%]",
        "0.500 [0.250, 1.000]",
        "0.5 [0.2, 1.0]",
    ]
    assert tables.metric("mean_words", None) == tables.metric("ths", None) == "-"


def test_csv_has_the_columns_of_all_rows_and_is_read_back(tmp_path):
    path = str(tmp_path / "rows.csv")
    tables.write_csv(path, [{"kind": "隐藏", "layer": 1}, {"kind": "a, b", "x": 0.5}])
    with open(path, newline="", encoding="utf-8") as f:
        assert list(csv.reader(f)) == [["kind", "layer", "x"], ["隐藏", "1", ""], ["a, b", "", "0.5"]]
    assert tables.read_csv(path) == [{"kind": "隐藏", "layer": "1", "x": ""}, {"kind": "a, b", "layer": "", "x": "0.5"}]
