"""The paper's tables: its figures fit together as its text says, and a run's row stands below
them.
"""

import pytest
from hand_run import benchmarks

from experiment import paper


def rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_the_averages_of_table_3_are_those_of_its_columns():
    for both in paper.TABLE_3.values():
        for *figures, average in both:
            assert len(figures) == len(paper.TABLE_3_COLUMNS) and sum(figures) / 8 == pytest.approx(
                average, abs=0.00065
            )


def test_the_tables_are_of_the_same_models_and_say_what_the_text_says():
    assert list(paper.TABLE_2) == list(paper.TABLE_3) == list(paper.TABLE_4) == list(paper.TABLE_7)
    assert [model for model, (before, after) in paper.TABLE_4.items() if after < before] == [
        "Llama2-chat-13B"
    ]  # section 5.2
    assert all(after[-1] > before[-1] for before, after in paper.TABLE_3.values())
    assert all(sum(shares) == pytest.approx(1) for _, *shares in paper.TABLE_7.values())
    assert (
        all(0.08 <= mixed <= 0.10 for *_, mixed in paper.TABLE_7.values()) and paper.TABLE_1["All"][0] == 0.81
    )  # sections A.3 and 3.3


def test_table_1_has_a_row_for_each_language_of_the_run():
    found = rows(
        paper.table_1(
            {
                "en": {"accuracy": 0.91, "precision": 0.82, "recall": 0.73, "kappa": 0.64},
                "zh": {"accuracy": 1, "precision": 1, "recall": 1, "kappa": 1},
            }
        )
    )
    assert found[4] == ["paper, against people", "English", "86.0%", "76.0%", "98.0%", "-"]
    assert (
        found[5][1:] == ["English", "91.0%", "82.0%", "73.0%", "0.640"]
        and found[6][1] == "Chinese"
        and "this run" in found[5][0]
    )


def test_reward_accuracy_takes_the_pairs_of_a_state_together():
    pair = lambda state, n, accuracy: {"state": state, "n": n, "accuracy": accuracy}
    found = paper.reward_accuracy(
        [
            pair("known", 8, 0.875),
            pair("unknown", 4, 0.75),
            pair("mixed", 1, 1.0),
            pair("mixed", 3, 1 / 3),
            pair("general", 9, 0.1),
        ]
    )
    assert found == {"known": 0.875, "unknown": 0.75, "mixed": pytest.approx(2 / 4), "balanced": 0.8125}
    assert paper.reward_accuracy([pair("known", 8, 0.875)]) == {
        "known": 0.875,
        "unknown": None,
        "mixed": None,
        "balanced": None,
    }


def test_table_2_has_the_balanced_mean_of_all_and_a_dash_for_what_is_missing():
    found = rows(paper.table_2([{"state": "known", "n": 8, "accuracy": 0.875}]))
    assert found[-1][1:] == ["87.5%", "-", "-", "-"] and found[2] == [
        "Qwen-chat-14B",
        "82.7%",
        "87.1%",
        "77.8%",
        "84.9%",
    ]


def test_table_3_has_an_average_only_of_all_eight():
    found = rows(paper.table_3(benchmarks()))
    assert found[2] == [
        "Qwen-chat-14B",
        "before",
        "64.2%",
        "53.8%",
        "76.5%",
        "34.5%",
        "47.3%",
        "18.9%",
        "65.0%",
        "64.1%",
        "53.0%",
    ]
    assert found[-2][1:] == ["before", "20.0%", "-", "30.0%", *"-----", "-"] and found[-1][1:] == [
        "after",
        "20.0%",
        "-",
        "32.0%",
        *"-----",
        "-",
    ]
    whole = rows(paper.table_3(benchmarks(tuple(paper.TABLE_3_COLUMNS))))  # 0.2 to 0.9 before, 0.00 to 0.14 more after
    assert (whole[-2][-1], whole[-1][-1]) == ("55.0%", "62.0%")


def test_table_4_has_a_row_for_each_measure():
    figures = lambda value: {"n": 9, "value": value, "interval": [0, 1]}
    found = rows(
        paper.table_4(
            {
                "before": {"generation": figures(0.25), "mc1": figures(0.5)},
                "after": {"generation": figures(0.375), "mc1": figures(0.75)},
            }
        )
    )
    assert [row[1:] for row in found[-2:]] == [["generation", "25.0%", "37.5%"], ["mc1", "50.0%", "75.0%"]] and found[
        3
    ] == ["Qwen-chat-7B", "generation", "49.1%", "50.3%"]


def test_the_alignment_tax_is_the_mean_change_with_the_interval_of_students_t():
    line = paper.alignment_tax(benchmarks())  # changes of 0, 2 and 4 points: deviation 2, t = 4.303
    assert "3 benchmarks" in line and "+2.0 [-3.0, +7.0] points" in line and "+0.5 to +3.2" in line
    assert "over 1 benchmark RLKF" in paper.alignment_tax(
        benchmarks(("mmlu",))
    ) and "+0.0 points" in paper.alignment_tax(benchmarks(("mmlu",)))


def test_table_7_has_shares_and_counts_of_the_run():
    assert rows(paper.table_7({"known": 30, "unknown": 60, "mixed": 10}))[-1][1:] == [
        "100",
        "30% (30)",
        "60% (60)",
        "10% (10)",
    ]
    assert rows(paper.table_7({"known": 0, "unknown": 0, "mixed": 0}))[-1][1:] == ["0", "0% (0)", "0% (0)", "0% (0)"]
