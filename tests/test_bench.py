"""The figures are those of the rows: the README's table is made again here and compared."""

import json
from pathlib import Path

import pytest
import torch

from flashheat.bench import figures, ops, peers
from flashheat.bench.cases import random_case
from flashheat.errors import FlashheatError
from flashheat.ops import diffuse_reference

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
GPU = RESULTS / "h200" / "ops.jsonl"


def row(impl: str, gpu_us: float, **other) -> dict:
    case = {"bench": "ops", "pass": "forward", "V": 1_000, "K": 128, "C": 128, "B": 1, "precision": "high"}
    return {**case, "impl": impl, "gpu_us": gpu_us, "floor_us": 1.0, **other}


@pytest.mark.parametrize(
    ("text", "results"),
    [
        ("README.md", GPU),
        ("docs/performance.md", GPU),
        ("docs/operators.md", RESULTS / "cpu" / "operators.jsonl"),
        ("docs/operators.md", RESULTS / "h200" / "operators.jsonl"),
    ],
)
def test_the_tables_of_a_text_are_of_the_rows(text, results):
    written = (ROOT / text).read_text()
    again = figures.insert(written, figures.read_rows(results))
    assert again == written, f"run `flashheat bench figures {results.relative_to(ROOT)} --text {text}`"


def test_a_ratio_of_the_cublas_path_is_marked_and_ragged_batches_have_their_own_table():
    both = {"pass": "both", "K": 256, "C": 64, "V": 2_000}
    rows = [row("eager", 30.0, **both), row("flashheat", 20.0, **both, path="cuBLAS")]
    rows += [row("flashheat", 4.0, B=64), row("padded", 9.0, B=64)]
    assert "| 256, 64 |  | (1.50) |  |" in figures.column_table(rows)
    assert "| us, forward | flashheat | padded |" in figures.ragged_table(rows)
    assert "| high | 4 | 9 |" in figures.ragged_table(rows)


def test_the_ratio_is_to_the_fastest_peer_of_the_same_case():
    rows = [row("eager", 30.0), row("compile", 20.0), row("flashheat", 10.0), row("compile", 5.0, V=4_000)]
    assert figures.ratio(rows, V=1_000, precision="high", **{"pass": "forward"}) == 2.0
    assert figures.ratio(rows, V=4_000, precision="high", **{"pass": "forward"}) is None
    assert "| high, forward | 2.00 |  |" in figures.table(rows)
    rows.append(row("compile", 25.0, precision="highest"))
    assert "| high (PyTorch: highest), forward | 2.50 |  |" in figures.table(rows)


def test_a_text_without_marks_and_a_file_without_rows_are_refused(tmp_path):
    with pytest.raises(FlashheatError, match="figures: begin"):
        figures.insert("no marks", [row("eager", 1.0)])
    with pytest.raises(FlashheatError, match="columns: end"):
        figures.insert("<!-- columns: begin -->", [row("eager", 1.0)])
    with pytest.raises(FlashheatError, match="bench ops"):
        figures.read_rows(tmp_path / "absent.jsonl")
    (tmp_path / "bad.jsonl").write_text(json.dumps(row("eager", 1.0)) + "\n{")
    with pytest.raises(FlashheatError, match="one JSON object a line"):
        figures.read_rows(tmp_path / "bad.jsonl")
    for line in ('{"bench": "ops", "V": 1000}', "[1]"):
        (tmp_path / "odd.jsonl").write_text(line)
        with pytest.raises(FlashheatError, match=r"must name its (bench|.*precision).* row 1"):
            figures.read_rows(tmp_path / "odd.jsonl")
    (tmp_path / "guide.jsonl").write_text('{"bench": "guide"}')
    with pytest.raises(FlashheatError, match=r"tables are made of bench ops, operators, .*: .* row 1 is of 'guide'"):
        figures.read_rows(tmp_path / "guide.jsonl")


def test_a_table_without_rows_stays_as_it_is():
    text = "<!-- figures: begin -->\nold\n<!-- figures: end -->\n<!-- ragged: begin -->\nkept\n<!-- ragged: end -->"
    changed = figures.insert(text, [row("eager", 2.0), row("flashheat", 1.0)])
    assert "old" not in changed
    assert "kept" in changed
    with pytest.raises(FlashheatError, match="must be those of a table of the text"):
        figures.insert(text, [row("eager", 2.0)])


def test_the_plot_is_a_picture_that_repeats(tmp_path):
    rows = [
        row(impl, us, precision=p)
        for p in figures.CLASSES
        for impl, us in (("eager", 3.0), ("compile", 2.0), ("flashheat", 1.0))
    ]
    for name in ("a.svg", "b.svg"):
        figures.plot(rows, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "floor (memory)" in (tmp_path / "a.svg").read_text()


def test_every_pass_of_every_peer_computes_what_the_reference_does():
    sizes = (30, 50, 40)
    case = random_case(0, 16, 8, sizes=list(sizes), device="cpu")
    exact = ops.calls(diffuse_reference, case)
    runs = {"flashheat": ("forward", "backward", "both"), "graphed loop": ("forward",), "padded": ("forward",)}
    for impl, names in runs.items():
        got = ops.calls(ops.implementation(impl, case, sizes), case)
        for name in names:
            assert ops.error_of(got[name](), exact[name](), sizes) < 1e-5, (impl, name)


def test_the_peers_for_many_meshes_compute_what_the_loop_does():
    sizes = (32, 48, 16)
    case = random_case(0, 16, 8, torch.bfloat16, sizes=list(sizes), device="cpu")
    args = (case.x, case.mass, case.evals, case.evecs, case.times)
    expected = peers.loop(*args, sizes)
    assert ops.relative(peers.grouped(*args, case.offsets), expected) < 1e-2
    padded = ops.implementation("padded", case, sizes)(*args, None)
    assert ops.relative(peers.unpad(padded, sizes), expected) < 1e-2


def test_the_rows_of_the_benchmark_are_all_there():
    main, columns, ragged = (ops.ROWS[part]() for part in ("main", "columns", "ragged"))
    assert len(main) == 3 * 9
    assert len(columns) == 3 * 15 * 3
    assert {len(row.sizes) for row in ragged} == {64}
    with pytest.raises(FlashheatError, match="part of the benchmark"):
        ops.run("out.jsonl", "", ["other"], ["high"])
    with pytest.raises(FlashheatError, match="precision of the benchmark"):
        ops.run("out.jsonl", "", ["main"], ["low"])


def test_a_case_measured_again_replaces_all_of_its_lines():
    old = [row("eager", 3.0, bench="ops"), row("compile", 2.0, bench="ops"), row("eager", 9.0, bench="ops", V=4_000)]
    new = [row("eager", 4.0, bench="ops"), row("flashheat", 1.0, bench="ops")]
    case = ops.Row(1_000, 128, 128, "high")
    assert ops.updated(old, case, new) == [old[2], *new]
    assert ops.updated(old, case, []) == [old[2]]  # one that failed its gate leaves nothing behind


MARKED = b"<!-- figures: begin -->\nold\n<!-- figures: end -->"


@pytest.mark.parametrize(
    ("content", "picture", "line"),
    [
        (MARKED + b"\xff", None, "the text must be UTF-8: .*; save it as UTF-8"),
        (b"old", None, "the text must mark a table by one of <!-- figures: begin -->, .*: add them"),
        (b"old\n<!-- figures: end -->", None, "the text must have the lines <!-- figures: begin --> and .*: mend them"),
        (MARKED, "plot.pdf", "the plot must be an SVG or PNG file: got .*plot.pdf; let its name end in .svg or .png"),
        (MARKED, "absent/plot.svg", "the plot must be written: .*: No such file or directory; choose another place"),
    ],
)
def test_what_fails_is_one_line_and_leaves_the_text_as_it_was(tmp_path, content, picture, line):
    text = tmp_path / "text.md"
    text.write_bytes(content)
    with pytest.raises(FlashheatError, match=f"^{line}$"):
        figures.remake(GPU, text, None if picture is None else tmp_path / picture)
    assert text.read_bytes() == content
    assert not list(tmp_path.glob("plot.*"))


def test_a_text_that_is_absent_and_a_plot_without_rows_are_one_line(tmp_path):
    with pytest.raises(FlashheatError, match=r"the text must be a file that can be read: .*: No such file"):
        figures.remake(GPU, tmp_path / "absent.md")
    eigenpairs = figures.read_rows(RESULTS / "cpu" / "operators.jsonl")
    with pytest.raises(FlashheatError, match="the plot must have rows of bench ops"):
        figures.plot(eigenpairs, tmp_path / "plot.svg")
