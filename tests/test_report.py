"""The report page: one file that asks for nothing, says what it was given, and refuses what it cannot show."""

import base64
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from flashheat.errors import FlashheatError, MeshError, MissingExtraError
from flashheat.mesh import icosphere
from flashheat.report import MeshView, write_report
from flashheat.report.charts import history_charts, projection_chart, projection_sentence
from flashheat.report.colours import class_colour, error_scale, field_scale
from flashheat.report.scenes import face_votes, scene
from flashheat.report.tables import metrics_table, verdict
from flashheat.report.thinning import thinned

DTYPES = {"f4": np.float32, "u1": np.uint8, "u2": np.uint16, "u4": np.uint32}
NASTY = '<img src=x onerror="boom()">&amp;</script>.stl'
METRICS = {
    "DiffusionNet": {"relative_l2": 0.0812, "accuracy": 0.9},
    "predict the mean": {"relative_l2": 0.93, "accuracy": 0.3},
    "no diffusion": {"relative_l2": 0.3248, "accuracy": 0.6},
}
HISTORY = [
    {"epoch": 1.0, "learning_rate": 1e-3, "train_loss": 2.0, "test_relative_l2": 0.9},
    {"epoch": 2.0, "learning_rate": 1e-4, "train_loss": 0.1, "test_relative_l2": 0.2},
]


def field_view(name: str = "body", subdivisions: int = 2, **changes: object) -> MeshView:
    mesh = icosphere(subdivisions)
    truth = mesh.verts[:, 2] ** 2
    view = MeshView(name, mesh.verts, mesh.faces, truth, truth + 0.1 * mesh.verts[:, 0], projection={8: 0.5, 32: 0.25})
    return replace(view, **changes)


def class_view(n_classes: int, **changes: object) -> MeshView:
    mesh = icosphere(2)
    truth = np.floor((mesh.verts[:, 0] + 1) / 2 * (n_classes - 1)).astype(int)
    return replace(MeshView("parts", mesh.verts, mesh.faces, truth, np.roll(truth, 1), "class"), **changes)


def write(path: Path, **changes: object) -> str:
    given = {
        "title": "Pressure on bodies",
        "summary": "A short run.",
        "metrics": METRICS,
        "history": HISTORY,
        "meshes": [field_view(), field_view("second")],
        "config": {"k_eig": 128, "width": 64},
        "notes": ["One note."],
    }
    assert write_report(path, **{**given, **changes}) == path
    return path.read_text(encoding="utf-8")


def data_of(page: str) -> dict:
    return json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])


def unpack(packed: list[str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed[1]), DTYPES[packed[0]])


class Tags(HTMLParser):
    """Every start tag with its attributes, and the text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("script", "style"):
            self.text += data


def test_page_is_one_file_without_any_reference(tmp_path: Path) -> None:
    page = write(tmp_path / "new" / "report.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]
    tags = Tags(page).tags
    assert not [tag for tag, attributes in tags if {"src", "href", "srcset", "data"} & set(attributes)]
    assert "link" not in {tag for tag, _ in tags}
    policy = next(attributes["content"] for _, attributes in tags if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    own = re.sub(r"<script>/\*\*\s+\* plotly.js.*?</script>", "", page, count=1, flags=re.DOTALL)
    assert len(own) < len(page) - 3_000_000, "plotly.js is in the page"
    assert "http:" not in own
    assert "https:" not in own
    assert "@import" not in own
    assert "url(" not in own


def test_page_says_what_it_was_given(tmp_path: Path) -> None:
    text = Tags(write(tmp_path / "report.html")).text
    for said in (
        "Pressure on bodies",
        "A short run.",
        "One note.",
        '"k_eig": 128',
        "0.0812",
        "0.93",
        "0.3248",
        "0.25 ×",
    ):
        assert said in text, said


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    page = write(
        tmp_path / "report.html",
        title=NASTY,
        summary=NASTY,
        notes=[NASTY],
        config={NASTY: NASTY},
        metrics={NASTY: {NASTY: 0.5}, "mean": {NASTY: 1.0}},
        history=[{"epoch": 1, NASTY: 0.5}],
        meshes=[field_view(NASTY, quantity=NASTY), class_view(2, name=NASTY, class_names=[NASTY, "b"])],
    )
    tags = Tags(page)
    assert "img" not in {tag for tag, _ in tags.tags}
    assert [tag for tag, _ in tags.tags].count("script") == 3
    assert tags.text.count(NASTY) >= 5
    assert data_of(page)["meshes"][0]["label"].startswith(NASTY)
    assert "<" not in data_of(page)["projection"]["lines"][0]["name"], "plotly reads tags in names"


def test_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    assert write(tmp_path / "a.html") == write(tmp_path / "b.html")


def test_demo_page_is_small(tmp_path: Path) -> None:
    write(tmp_path / "report.html", meshes=[field_view(f"body {index}", 3) for index in range(5)])
    assert (tmp_path / "report.html").stat().st_size < 6_000_000


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("which", ["truth", "prediction"])
def test_values_that_are_not_finite_are_refused(which: str, value: float) -> None:
    values = np.zeros(162)
    values[7] = value
    with pytest.raises(FlashheatError, match=rf"{which} of body .*finite.* 1 of 162 .*row 7"):
        field_view(**{which: values})


def test_wrong_lengths_name_both_arguments() -> None:
    with pytest.raises(FlashheatError, match=r"prediction of body .*`verts` \(162\).*`faces` \(320\); got 161"):
        field_view(prediction=np.zeros(161))
    with pytest.raises(FlashheatError, match=r"truth \[320\], prediction \[162\]"):
        field_view(truth=np.zeros(320))


def test_other_bad_views_are_refused() -> None:
    with pytest.raises(FlashheatError, match=r"at most 1 .*`class_names`.*row 0 holds 2"):
        class_view(2, prediction=np.full(162, 2), class_names=["a", "b"])
    with pytest.raises(FlashheatError, match=r"row 0 holds 0\.5"):
        class_view(2, prediction=np.full(162, 0.5))
    with pytest.raises(FlashheatError, match="kind must be"):
        field_view(kind="colour")
    with pytest.raises(MeshError, match="faces must point at vertices"):
        field_view(faces=np.array([[0, 1, 162]]))


def test_unwritable_folder_and_missing_plotly_leave_the_old_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FlashheatError, match="file"):
        write(tmp_path / "file" / "report.html")
    (tmp_path / "report.html").write_text("before")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtraError, match=r'pip install "flashheat\[app\]"'):
        write(tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "report.html"]
    assert (tmp_path / "report.html").read_text() == "before"


def test_field_scene_holds_the_arrays_that_came() -> None:
    view = field_view()
    drawn = scene(view)
    truth, prediction, error = (unpack(panel["values"]) for panel in drawn["panels"])
    np.testing.assert_array_equal(truth, view.truth.astype(np.float32))
    np.testing.assert_array_equal(prediction, view.prediction.astype(np.float32))
    np.testing.assert_allclose(error, 0.1 * view.verts[:, 0], atol=1e-7)
    np.testing.assert_array_equal(np.stack([unpack(column) for column in drawn["ijk"]], axis=1), view.faces)
    np.testing.assert_allclose(np.stack([unpack(column) for column in drawn["xyz"]], axis=1), view.verts, atol=1e-6)
    assert [panel["scale"] for panel in drawn["panels"]] == [0, 0, 1]
    assert (drawn["drawn"], drawn["hover"]) == ("vertex", True)
    expected = np.sqrt(view.areas @ (view.prediction - view.truth) ** 2 / (view.areas @ view.truth**2))
    assert drawn["label"] == f"body · relative L2 error {expected:.4g}"


def test_far_away_mesh_keeps_its_shape() -> None:
    view = field_view()
    there = scene(replace(view, verts=1e-3 * view.verts + 1e6))
    for here, moved in zip(scene(view)["xyz"], there["xyz"], strict=True):
        np.testing.assert_allclose(unpack(moved), unpack(here), atol=1e-5)


def test_face_values_point_clouds_and_unknown_truth() -> None:
    view = field_view()
    at_faces = view.verts[view.faces][:, :, 2].mean(axis=1)
    faces = scene(replace(view, truth=at_faces, prediction=at_faces))
    assert faces["drawn"] == "triangle"
    assert faces["label"].endswith("error 0")
    points = scene(replace(view, faces=np.zeros((0, 3), dtype=int)))
    assert (points["drawn"], points["ijk"]) == ("point", [])
    alone = scene(replace(view, truth=None))
    assert [panel["title"] for panel in alone["panels"]] == ["Prediction"]
    assert alone["label"] == "body"


def test_class_scene_draws_each_triangle_in_one_class() -> None:
    view = class_view(8)
    truth, _, wrong = (unpack(panel["values"]) for panel in scene(view)["panels"])
    assert len(truth) == len(wrong) == len(view.faces)
    corners = view.truth[view.faces]
    assert ((corners == truth[:, None]).sum(axis=1) >= [2 if len(set(labels)) < 3 else 1 for labels in corners]).all()
    n_wrong = int((view.truth != view.prediction).sum())
    legends = [[text for _, text in scale["legend"]] for scale in scene(view)["scales"]]
    assert legends == [
        [f"class {index}" for index in range(8)],
        [f"right: {162 - n_wrong} vertices", f"wrong: {n_wrong} vertices"],
    ]
    np.testing.assert_array_equal(
        face_votes(np.array([5, 7, 7, 9]), np.array([[0, 1, 2], [1, 0, 2], [3, 0, 1]])), [7, 7, 9]
    )


def test_many_classes_have_a_colour_bar_and_no_legend() -> None:
    names = [f"base {index}" for index in range(260)]
    labels = class_view(2, class_names=names, prediction=np.arange(162) % 260)
    scale = scene(labels)["scales"][0]
    assert scale["legend"] == []
    assert scale["ticks"] == ["base 0", "base 130", "base 259"]
    assert len({class_colour(index) for index in range(24)}) == 24


def test_colour_ranges() -> None:
    truth = np.r_[np.linspace(0, 1, 999), 1e6]
    scale = field_scale([truth, truth], "Pa")
    assert 0 < scale["low"] < 0.02
    assert 0.98 < scale["high"] < 1
    assert scale["ticks"][0].startswith("≤")
    assert scale["ticks"][2].startswith("≥")
    error = error_scale(np.r_[-3.0, 1.0, 2.0], "Pa")
    assert error["low"] == -error["high"]
    assert error["ticks"][1].strip("0.") == ""
    for flat in (field_scale([np.full(5, 101325.0)], ""), field_scale([np.zeros(5)], ""), error_scale(np.zeros(5), "")):
        assert flat["low"] < flat["high"]
    pressures = field_scale([np.linspace(101320, 101330, 100)], "Pa")
    assert len(set(pressures["ticks"])) == 3, "the ticks tell the values apart"


def test_large_mesh_is_thinned_for_the_picture_only() -> None:
    view = field_view(subdivisions=4)
    shown = thinned(view, limit=500)
    assert 250 < len(shown.verts) <= 500
    assert abs(shown.areas.sum() / view.areas.sum() - 1) < 0.05
    at = {tuple(vert): value for vert, value in zip(view.verts, view.truth, strict=True)}
    assert all(at[tuple(vert)] == value for vert, value in zip(shown.verts, shown.truth, strict=True))
    at_faces = replace(view, truth=None, prediction=view.verts[view.faces][:, :, 2].mean(axis=1))
    smaller = thinned(at_faces, limit=500)
    assert np.abs(smaller.prediction - smaller.verts[smaller.faces][:, :, 2].mean(axis=1)).max() < 0.15
    assert thinned(view) is view
    cloud = replace(view, faces=np.zeros((0, 3), dtype=int))
    assert len(thinned(cloud, limit=500).prediction) <= 500


def test_large_mesh_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashheat.report.scenes.thinned", lambda view: thinned(view, limit=100))
    drawn = scene(field_view())
    assert not drawn["hover"]
    assert "thinned to" in drawn["caption"]
    assert drawn["label"] == scene(field_view())["label"], "figures are of the whole mesh"


def test_unused_vertices_are_mentioned() -> None:
    view = field_view()
    extra = replace(
        view, verts=np.r_[view.verts, [[0, 0, 0]]], truth=np.r_[view.truth, 0], prediction=np.r_[view.prediction, 0]
    )
    assert "1 vertices belong to no triangle" in scene(extra)["caption"]


def test_table_compares_with_the_best_baseline() -> None:
    table = metrics_table(METRICS)
    assert '<b class="better">0.25 ×</b><small>better than “no diffusion”' in table
    assert '<b class="better">1.50 ×</b>' in table
    worse = metrics_table({"net": {"relative_l2": 1.0}, "mean": {"relative_l2": 0.5}})
    assert '<b class="worse">2.00 ×</b><small>worse than “mean”' in worse
    assert verdict(METRICS).startswith("In relative L2 (lower is better) the net reaches 0.0812")
    assert verdict({"net": {"mae": 1.0}}) == ""
    assert "–" in metrics_table({"net": {"mae": np.nan}, "mean": {"mae": 1.0}})


def test_history_has_a_chart_for_the_loss_and_each_measure() -> None:
    loss, measure = history_charts([*HISTORY, {"epoch": 3, "train_loss": np.nan}])
    assert loss["title"] == "Loss"
    assert loss["y"]["log"], "the loss falls more than ten-fold"
    assert loss["lines"][0]["x"] == [1, 2, 3]
    assert loss["lines"][0]["y"] == [2.0, 0.1, None]
    assert measure["title"] == "Relative L2 on meshes kept out of training (lower is better)"
    (accuracy,) = history_charts([{"epoch": 1, "test_accuracy": 0.01}, {"epoch": 2, "test_accuracy": 0.9}])
    assert not accuracy["y"]["log"]
    assert accuracy["title"].endswith("(higher is better)")
    assert history_charts([]) == []


def test_projection_is_explained() -> None:
    views = [field_view(), field_view("second", projection={8: 0.3, 32: 0.15, 64: 0.1})]
    mean = projection_chart(views)["lines"][2]
    assert (mean["name"], mean["x"], mean["y"]) == ("mean", [8, 32], [0.4, 0.2])
    assert "with 32 of them, the best possible mixture still misses the target by 0.2" in projection_sentence(views)
    assert projection_chart([field_view(projection={})]) is None


def test_page_without_extras_can_be_written(tmp_path: Path) -> None:
    page = write(tmp_path / "report.html", metrics={}, history=[], meshes=[], notes=[])
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings == []


def test_browser_draws_the_page_without_errors(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium or google-chrome on the PATH: the page is not opened")
    write(tmp_path / "report.html", meshes=[field_view(projection={8: 0.5}), class_view(8)])
    command = [browser, "--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    command += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=900,700", "--virtual-time-budget=20000"]
    command += [f"--screenshot={tmp_path / 'page.png'}", "--dump-dom", (tmp_path / "report.html").as_uri()]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in seen.stderr.splitlines() if ":CONSOLE" in line and "willReadFrequently" not in line]
    assert said == []
    assert 'data-drawn="yes"' in seen.stdout
    assert seen.stdout.count("<canvas") == 3
    image = pytest.importorskip("PIL.Image").open(tmp_path / "page.png").convert("HSV")
    hue, saturation, _ = np.moveaxis(np.asarray(image), 2, 0)
    large = np.bincount(hue[saturation > 80] // 16, minlength=16) > 4_000
    assert large.sum() >= 3, "the surfaces have the colours of the scale; the colour bars alone are smaller than this"
