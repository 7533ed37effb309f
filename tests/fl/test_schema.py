"""The feature schema: what it accepts, what it says about a file, how it encodes."""

import json
from pathlib import Path

import numpy as np
import pytest

from fl.errors import SchemaError
from fl.schema import Feature, FeatureKind, FeatureSchema, Missing, Table

MAPPING: dict[str, object] = {
    "features": [
        {"name": "age", "missing": "mean"},
        {"name": "dose", "missing": "zero", "scale": 1000},
        {"name": "sex", "kind": "categorical", "categories": ["f", "m"], "missing": "category"},
        {"name": "stage", "kind": "categorical", "categories": [1, 2, 3]},
        {"name": "weight"},
    ],
    "target": {"name": "outcome", "classes": ["alive", "dead"]},
}
HEADER = "id,age,dose,sex,stage,weight,outcome"


def schema() -> FeatureSchema:
    """The schema of most tests."""
    return FeatureSchema.parse(MAPPING)


def table(
    folder: Path, *lines: str, of: FeatureSchema | None = None, header: str = HEADER
) -> Table:
    """The table of a file with these lines."""
    path = folder / "silo.csv"
    path.write_text("\n".join([header, *lines]), encoding="utf-8")
    return (of or schema()).read_csv(path)


def test_a_schema_survives_its_mapping() -> None:
    """The plan's document carries the schema without loss, defaults filled in."""
    written = json.loads(json.dumps(schema().to_mapping()))
    assert FeatureSchema.parse(written) == schema()
    positive = FeatureSchema.parse(MAPPING | {"target": {"name": "y", "positive": 1}})
    assert FeatureSchema.parse(positive.to_mapping()) == positive
    assert positive.target.class_names == ("not 1", "1")


def test_encoded_columns_are_named_in_order() -> None:
    """One column a number, one a category, one for a missing category where it has its own."""
    assert schema().columns == (
        "age",
        "dose",
        "sex=f",
        "sex=m",
        "sex=<missing>",
        "stage=1",
        "stage=2",
        "stage=3",
        "weight",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"feature": []}, r"unknown key 'feature' \(did you mean 'features'\?\)"),
        ({"features": []}, "at least one feature"),
        ({"features": "age"}, "features must be a list"),
        ({"features": ["age"]}, r"features\[0\]: expected a table"),
        ({"features": [{"name": "a", "knd": "numeric"}]}, r"features\[0\]: unknown key 'knd'"),
        ({"features": [{"name": "a", "kind": "date"}]}, r"kind: expected one of 'numeric'"),
        ({"features": [{"name": "a", "missing": "category"}]}, "does not suit a numeric"),
        ({"features": [{"name": "a", "scale": 0}]}, "scale must be a finite number above 0"),
        ({"features": [{"name": "a", "scale": True}]}, "scale: expected a number, got bool"),
        ({"features": [{"name": "a", "categories": ["x"]}]}, "numeric column has no categories"),
        ({"features": [{"name": "a", "kind": "categorical"}]}, "list its categories"),
        ({"features": [{"name": " "}]}, "non-empty name"),
        ({"features": [{"name": "a"}, {"name": "a"}]}, "column 'a' is listed twice"),
        ({"features": [{"name": "outcome"}]}, "column 'outcome' is listed twice"),
        ({"target": {"name": "y"}}, "either classes"),
        ({"target": {"name": "y", "classes": ["a", "b"], "positive": "a"}}, "either classes"),
        ({"target": {"name": "y", "classes": ["a"]}}, "two classes at least"),
        ({"target": {"name": "y", "classes": ["a", "a"]}}, "class 'a' is listed twice"),
        ({"target": {"name": "y", "classes": "ab"}}, "classes: expected a list"),
        ({"target": {"name": 1.5, "positive": "a"}}, "target.name: expected text"),
        ({"target": None}, "target: expected a table"),
    ],
)
def test_a_wrong_schema_is_refused_by_key(change: dict[str, object], said: str) -> None:
    """Whoever wrote the config reads which key is wrong and what was expected."""
    with pytest.raises(SchemaError, match=said):
        FeatureSchema.parse(MAPPING | change)


def test_encoded_columns_of_two_features_must_not_meet() -> None:
    """A column named like another's category would be two things under one name."""
    with pytest.raises(SchemaError, match="encoded column 'sex=f' is listed twice"):
        FeatureSchema(
            features=(
                Feature(name="sex=f", kind=FeatureKind.NUMERIC, missing=Missing.MEAN),
                schema().features[2],
            ),
            target=schema().target,
        )


def test_missing_cells_become_what_the_schema_says(tmp_path: Path) -> None:
    """Mean is 0 after standardization, zero is the raw 0, a category is its own column."""
    rows = table(tmp_path, "1,60,2000,f,2,70,alive", "2,NA,,?,1,80,dead")
    assert rows.labels is not None
    assert rows.labels.tolist() == [0, 1]
    assert rows.notes == (
        "column 'age': 1 cell (line 3) missing, taken as the mean of all silos",
        "column 'dose': 1 cell (line 3) missing, taken as 0",
        "column 'sex': 1 cell (line 3) missing, taken as a category of its own",
    )
    encoded = schema().encode(rows, np.array([50.0, 1.0, 75.0]), np.array([10.0, 2.0, 5.0]))
    assert encoded.tolist() == [
        [1.0, 0.5, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0],
        [0.0, -0.5, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0],
    ]


def test_a_categorical_cell_may_be_none_of_its_categories(tmp_path: Path) -> None:
    """With missing = zero all of the feature's columns are 0."""
    loose = FeatureSchema.parse(
        {
            "features": [
                {"name": "sex", "kind": "categorical", "categories": ["f", "m"], "missing": "zero"}
            ],
            "target": {"name": "y", "classes": ["0", "1", "2"]},
        }
    )
    rows = table(tmp_path, ",2", "m,0", of=loose, header="sex,y")
    assert loose.encode(rows).tolist() == [[0, 0], [0, 1]]


def test_a_listed_category_wins_over_a_spelling_of_missing(tmp_path: Path) -> None:
    """Where "none" is a category, it is not a missing cell."""
    therapy = FeatureSchema.parse(
        {
            "features": [
                {
                    "name": "therapy",
                    "kind": "categorical",
                    "categories": ["none", "some"],
                    "missing": "refuse",
                }
            ],
            "target": {"name": "y", "classes": ["0", "1"]},
        }
    )
    rows = table(tmp_path, "none,0", "some,1", of=therapy, header="therapy,y")
    assert rows.categorical[:, 0].tolist() == [0, 1]


def test_every_problem_of_a_file_is_reported_at_once_without_its_cells(tmp_path: Path) -> None:
    """Columns, counts, lines and what is allowed; no patient's value."""
    with pytest.raises(SchemaError) as refused:
        table(
            tmp_path,
            "1,61.5.2,1,female,2,70,alive",
            "2,inf,1_0,f,,secret,dead",
            "3,50,1,f,9,,",
            "4,50,1,f,1,60,unknown",
            header="id,age,dosis,sex,stage,weight,outcome",
        )
    message = str(refused.value)
    for said in (
        "column 'dose' is not in the file",
        "column 'age': 2 cells (line 2, 3) no finite number",
        "column 'sex': 1 cell (line 2) not an allowed value; allowed: 'f', 'm'",
        "column 'stage': 1 cell (line 3) missing, which the schema refuses",
        "column 'stage': 1 cell (line 4) not an allowed value",
        "column 'weight': 1 cell (line 3) no finite number",
        "missing = 'category' or 'zero'",
        "column 'weight': 1 cell (line 4) missing, which the schema refuses",
        "missing = 'mean' or 'zero'",
        "column 'outcome': 1 cell (line 5) not an allowed value; allowed: 'alive', 'dead'",
        "column 'outcome': 1 cell (line 4) missing; every row needs its target",
    ):
        assert said in message
    for cell in ("61.5", "female", "secret", "inf,", "unknown"):
        assert cell not in message


def test_numbers_are_plain_decimal_numbers(tmp_path: Path) -> None:
    """Digit groups, infinities and decimal commas are no numbers here."""
    for cell in ("1_000", "inf", "1e999", '"1,5"', "0x10"):
        with pytest.raises(SchemaError, match="column 'age': 1 cell"):
            table(tmp_path, f"1,{cell},1,f,1,70,alive")


def test_a_positive_value_alone_allows_one_other(tmp_path: Path) -> None:
    """Two different others could hide a misspelled label."""
    one = FeatureSchema.parse({"features": [{"name": "x"}], "target": {"name": "y", "positive": 1}})
    rows = table(tmp_path, "1,0", "2,1", "3,0", of=one, header="x,y")
    assert rows.labels is not None
    assert rows.labels.tolist() == [0, 1, 0]
    alike = table(tmp_path, "1,1", "2,1", of=one, header="x,y")
    assert alike.labels is not None
    assert alike.labels.tolist() == [1, 1]
    with pytest.raises(SchemaError, match="2 different values besides the positive '1'"):
        table(tmp_path, "1,0", "2,1", "3,O", of=one, header="x,y")
    with pytest.raises(SchemaError, match=r"column 'y': 1 cell .* missing"):
        table(tmp_path, "1,1", "2,", of=one, header="x,y")


def test_rows_for_a_prediction_need_no_target(tmp_path: Path) -> None:
    """The same file without its last column can be predicted, not trained on."""
    path = tmp_path / "new.csv"
    path.write_text("age,dose,sex,stage,weight\n60,1,f,1,70\n", encoding="utf-8")
    assert schema().read_csv(path, with_target=False).labels is None
    with pytest.raises(SchemaError, match="column 'outcome' is not in the file"):
        schema().read_csv(path)


def test_a_mean_that_nobody_computed_is_refused(tmp_path: Path) -> None:
    """Without standardization a missing cell has no mean to become."""
    rows = table(tmp_path, "1,,1,f,1,70,alive")
    with pytest.raises(SchemaError, match="standardize = true"):
        schema().encode(rows)


@pytest.mark.parametrize(
    ("mean", "scale"),
    [([0.0, 0.0], [1.0, 1.0]), ([0.0] * 3, [1.0, 0.0, 1.0]), ([0.0, np.nan, 0.0], [1.0] * 3)],
)
def test_unusable_statistics_are_refused(
    tmp_path: Path, mean: list[float], scale: list[float]
) -> None:
    """Another length, a zero scale or a NaN must not reach the model."""
    rows = table(tmp_path, "1,60,1,f,1,70,alive")
    with pytest.raises(SchemaError, match="mean and scale must"):
        schema().encode(rows, np.array(mean), np.array(scale))


def test_a_table_can_be_cut_and_not_changed(tmp_path: Path) -> None:
    """Rows are chosen in the given order; arrays are read-only."""
    rows = table(tmp_path, "1,60,1,f,1,70,alive", "2,61,1,m,2,71,dead", "3,62,1,m,3,72,dead")
    part = rows.take(np.array([2, 0]))
    assert part.numeric[:, 0].tolist() == [62, 60]
    assert part.categorical.tolist() == [[1, 2], [0, 0]]
    assert part.labels is not None
    assert part.labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="read-only"):
        rows.numeric[0, 0] = 1
