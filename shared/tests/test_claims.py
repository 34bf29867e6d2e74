import math
from pathlib import Path

import pytest
import scipy.stats
import yaml
from shared.claims import Claim, gain, judge, load_claims, mean_interval, mean_sd, paired_difference
from shared.results import Record, Results

OURS = {0: 0.672, 1: 0.668, 2: 0.681, 3: 0.659, 4: 0.677}
PLAIN = {0: 0.661, 1: 0.662, 2: 0.668, 3: 0.655, 4: 0.664}


def results_of(values, metric="accuracy", setting="digits"):
    records = [
        Record(method, seed, setting, {metric: value}, 1.0, "hash", {}, "cpu")
        for method, by_seed in values.items()
        for seed, value in by_seed.items()
    ]
    return Results("paper", "0.1.0", records)


def claim(**changes):
    base = {
        "id": "better", "text": "Ours wins.", "metric": "accuracy", "setting": "digits", "better": "ours",
        "than": ("plain",), "direction": "higher", "min_seeds": 3,
    }  # fmt: skip
    return Claim(**(base | changes))


def verdict(differences, **changes):
    values = {"ours": dict(enumerate(differences)), "plain": dict.fromkeys(range(len(differences)), 0.0)}
    return judge(claim(**changes), results_of(values)).verdict


def test_deviation_divides_by_n_minus_1():
    assert mean_sd([1.0, 2.0, 3.0, 4.0]) == (2.5, pytest.approx(math.sqrt(5 / 3), rel=1e-15))


def test_deviation_of_one_value_and_mean_of_none_are_unknown():
    assert mean_sd([3.0])[0] == 3.0
    assert math.isnan(mean_sd([3.0])[1])
    assert all(map(math.isnan, mean_sd([])))


def test_interval_uses_the_tabulated_student_quantile():
    # 1, 2, 3, 4: mean 2.5, standard error sqrt(5/3)/2, t(0.975; 3) = 3.182446 in any table
    half = 3.182446305 * math.sqrt(5 / 3) / 2
    assert mean_interval([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5 - half, 2.5 + half), rel=1e-9)


def test_paired_interval_is_that_of_the_paired_t_test():
    interval = scipy.stats.ttest_rel(list(OURS.values()), list(PLAIN.values())).confidence_interval(0.95)
    found = paired_difference(OURS, PLAIN)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-12)
    assert (found.n, found.mean) == (5, pytest.approx(0.0094, rel=1e-12))
    # differences 11, 6, 13, 4, 13 thousandths: squared deviations from 9.4 sum to 69.2
    assert found.sd == pytest.approx(math.sqrt(69.2 / 4) / 1000, rel=1e-12)


def test_pairing_is_by_seed_and_not_by_position():
    shuffled = {seed: PLAIN[seed] for seed in (3, 0, 4, 2, 1)}
    assert paired_difference(OURS, shuffled) == paired_difference(OURS, PLAIN)


def test_seeds_that_only_one_method_has_do_not_count():
    found = paired_difference({0: 1.0, 1: 3.0, 2: 5.0, 9: 100.0}, {0: 0.0, 1: 1.0, 2: 2.0, 7: -100.0})
    half = 4.302652730 / math.sqrt(3)  # differences 1, 2, 3; t(0.975; 2)
    assert (found.n, found.mean, found.sd) == (3, 2.0, 1.0)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), rel=1e-9)


@pytest.mark.parametrize("common", [0, 1])
def test_fewer_than_two_pairs_bound_nothing(common):
    found = paired_difference(dict.fromkeys(range(common), 1.0), {0: 0.0, 5: 0.0})
    assert (found.n, found.low, found.high) == (common, -math.inf, math.inf)
    assert math.isnan(found.sd)


def test_gain_is_positive_where_the_first_is_better():
    assert gain(OURS, PLAIN, "higher") == paired_difference(OURS, PLAIN)
    lower = gain(OURS, PLAIN, "lower")
    assert lower.mean == -paired_difference(OURS, PLAIN).mean
    assert lower.low < lower.mean < lower.high < 0


@pytest.mark.parametrize(
    ("differences", "margin", "expected"),
    [
        # mean 2, half width 2.484 (see above)
        ([1.0, 2.0, 3.0], 0.0, "not separated"),
        ([1.0, 2.0, 3.0], -0.5, "holds"),
        ([1.0, 2.0, 3.0], 4.4, "not separated"),
        ([1.0, 2.0, 3.0], 4.5, "refuted"),
        ([-1.0, -2.0, -3.0], 0.5, "refuted"),
        # no spread: the interval is a point, and lies neither above nor below itself
        ([0.5, 0.5, 0.5], 0.5, "not separated"),
        ([0.5, 0.5, 0.5], 0.25, "holds"),
        ([0.5, 0.5, 0.5], 0.75, "refuted"),
        ([5.0, 5.0], 0.0, "not measured"),
    ],
)
def test_verdict_is_where_the_interval_lies_to_the_margin(differences, margin, expected):
    assert verdict(differences, margin=margin) == expected


def test_where_less_is_better_the_same_differences_give_the_opposite_verdict():
    assert verdict([0.5, 0.5, 0.5]) == "holds"
    assert verdict([0.5, 0.5, 0.5], direction="lower") == "refuted"
    assert verdict([-0.5, -0.5, -0.5], direction="lower", margin=0.25) == "holds"


def test_records_of_other_settings_and_metrics_measure_nothing():
    values = {"ours": dict.fromkeys(range(3), 1.0), "plain": dict.fromkeys(range(3), 0.0)}
    assert judge(claim(), results_of(values)).verdict == "holds"
    assert judge(claim(), results_of(values, setting="other")).verdict == "not measured"
    assert judge(claim(), results_of(values, metric="other")).verdict == "not measured"


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({0: 0.0, 1: 0.0, 2: 0.0}, "holds"),
        ({0: 0.0, 1: 1.0, 2: 2.0}, "not separated"),
        ({0: 0.0, 1: 0.0}, "not measured"),
        ({0: 2.0, 1: 2.0, 2: 2.0}, "refuted"),
    ],
)
def test_claim_against_several_is_as_good_as_its_weakest_part(second, expected):
    values = {"ours": dict.fromkeys(range(3), 1.0), "plain": dict.fromkeys(range(3), 0.0), "second": second}
    for than in (("plain", "second"), ("second", "plain")):
        found = judge(claim(than=than), results_of(values))
        assert found.verdict == expected
        assert list(found.gains) == list(than)
        assert found.gains["plain"].mean == 1.0


def test_one_refutation_settles_a_claim_of_which_a_part_is_not_measured():
    values = {"ours": dict.fromkeys(range(3), 1.0), "plain": dict.fromkeys(range(3), 2.0)}
    assert judge(claim(than=("absent", "plain")), results_of(values)).verdict == "refuted"


ENTRY = {
    "id": "better", "text": "Ours is better (Table 1).", "metric": "accuracy", "setting": "digits",
    "better": "ours", "than": "plain", "direction": "higher", "min_seeds": 5,
}  # fmt: skip


def write(tmp_path: Path, *entries):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(list(entries)))
    return path


def test_claims_are_read_with_their_defaults(tmp_path):
    full = {
        "id": "all",
        "than": ["plain", "x"],
        "margin": -0.005,
        "published": "about 1",
        "note": "One seed.",
    }
    first, second = load_claims(write(tmp_path, ENTRY, ENTRY | full))
    assert first == Claim(
        "better", "Ours is better (Table 1).", "accuracy", "digits", "ours", ("plain",), "higher", 5,
        margin=0.0, published=None, note=None,
    )  # fmt: skip
    assert (second.than, second.margin) == (("plain", "x"), -0.005)
    assert (second.published, second.note) == ("about 1", "One seed.")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("text", ""),
        ("metric", 3),
        ("setting", 0.3),  # an unquoted name that YAML reads as a number
        ("better", None),
        ("than", []),
        ("than", ["plain", "plain"]),
        ("than", "ours"),
        ("than", {"plain": 1}),
        ("direction", "up"),
        ("margin", "0.1"),
        ("margin", True),
        ("margin", math.nan),
        ("min_seeds", 1),
        ("min_seeds", 2.5),
        ("min_seeds", True),
        ("published", [1.0]),
        ("note", 7),
        ("sead", 1),
    ],
)
def test_bad_key_is_refused_by_claim_and_name(tmp_path, key, value):
    path = write(tmp_path, ENTRY | {"id": "good"}, ENTRY | {key: value})
    with pytest.raises(ValueError, match=rf"claims\.yaml: claim 'better': .*{key}"):
        load_claims(path)


@pytest.mark.parametrize("key", [key for key in ENTRY if key != "id"])
def test_missing_key_is_refused_by_claim_and_name(tmp_path, key):
    entry = {name: value for name, value in ENTRY.items() if name != key}
    with pytest.raises(ValueError, match=f"claim 'better': missing key '{key}'"):
        load_claims(write(tmp_path, entry))


def test_claim_without_id_is_named_by_its_place(tmp_path):
    nameless = {name: value for name, value in ENTRY.items() if name != "id"}
    with pytest.raises(ValueError, match="claim number 2: missing key 'id'"):
        load_claims(write(tmp_path, ENTRY, nameless))


def test_id_is_used_once(tmp_path):
    with pytest.raises(ValueError, match="claim 'better': id is used by an earlier claim"):
        load_claims(write(tmp_path, ENTRY, ENTRY))


@pytest.mark.parametrize(("text", "got"), [("id: better", "dict"), ("", "NoneType"), ("just text", "str")])
def test_file_that_is_no_list_is_refused(tmp_path, text, got):
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"claims\.yaml: expected a list of claims, got {got}"):
        load_claims(path)


def test_yaml_that_does_not_parse_or_would_run_code_is_refused(tmp_path):
    path = tmp_path / "claims.yaml"
    for text in ("- {id: [", "- !!python/object/apply:os.getcwd []"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"claims\.yaml cannot be read as YAML"):
            load_claims(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"claims\.yaml: no such file"):
        load_claims(tmp_path / "claims.yaml")


@pytest.mark.parametrize(
    ("key", "value"),
    [("better", "nobody"), ("than", ["plain", "nobody"]), ("setting", "nowhere"), ("metric", "x")],
)
def test_name_that_the_comparison_lacks_is_refused_with_the_choices(tmp_path, key, value):
    known = {"methods": ["ours", "plain"], "settings": ["digits"], "metrics": ["accuracy"]}
    load_claims(write(tmp_path, ENTRY), **known)
    with pytest.raises(ValueError, match=f"claim 'better': {key} is .*expected one of (ours, plain|digits|accuracy)"):
        load_claims(write(tmp_path, ENTRY | {key: value}), **known)
