"""The guide from five lines to one launch: every step as a program, what it says of errors, its table and its text.

    python -m tests.test_triton_guide STEP...    # with TRITON_INTERPRET=1: the errors of these steps, as JSON

The kernels run under Triton's interpreter, which has to be chosen before Triton is imported: in processes of their own,
four steps in each.
"""

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashheat.errors import FlashheatError
from tests import guide

ROOT = Path(__file__).parents[1]
SHAPES = [(1, 1, 1), (67, 17, 5), (101, 19, 7), (130, 40, 33), (97, 33, 40)]
GROUPS = [guide.STEPS[n : n + 4] for n in range(0, len(guide.STEPS), 4)]
# torch.compile needs a compiler; the interpreter's products of bf16 are wrong.
NOT_HERE = {"torch.compile", "bf16x3"}
# The interpreter multiplies in float32 whatever a kernel asks for, and sums at most 97 terms: about 4e-7 is seen.
TOLERANCE = 2e-6
# d_times is a sum over k of terms of both signs behind two such products: up to 1e-6 is seen.
TOLERANCE_DERIVATIVES = 5e-6
# Variants that are less exact than float32, on a GPU.
TOLERANCES = {"the article's kernel": 1e-3, "tf32": 1e-3, "tf32x3": 1e-5, "bf16x3": 2e-4}
# One running sum over all of 20,011 vertices: 2.4e-6 is seen in float32, 6.8e-5 in the accumulators of tensor cores.
TOLERANCES["ieee"] = 5e-6


def run(*arguments: str, interpret: bool) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=ROOT, timeout=240
    )


@pytest.mark.parametrize("steps", GROUPS, ids=lambda steps: "-".join(step.split("_")[1] for step in steps))
def test_every_variant_of_every_step_matches_float64_under_the_interpreter(steps):
    done = run("-m", "tests.test_triton_guide", *steps, interpret=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert list(found) == steps
    for step, errors in found.items():
        assert errors, step
        for name, error in errors:
            limit = TOLERANCE_DERIVATIVES if name.startswith("d_") else TOLERANCE
            assert error < limit, f"{step}, {name}: {error}"


def test_a_step_without_gpu_and_interpreter_says_what_it_needs():
    done = run("examples/triton_guide/step_03_naive.py", interpret=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines() == [
        "a step needs a CUDA device, or TRITON_INTERPRET=1 set before it starts: torch sees no device here"
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cast_before_the_decay_rounds_twice(dtype):
    rng = torch.Generator().manual_seed(0)
    x_hat = torch.randn(128, 128, generator=rng)
    evals, times = 7 * torch.rand(128, generator=rng), torch.rand(128, generator=rng)
    early, late = guide.module("step_02_the_article").decay_after_cast(x_hat, evals, times, dtype)
    assert early / late == pytest.approx(2**0.5, rel=0.05)  # two roundings that know nothing of one another
    assert late < torch.finfo(dtype).eps / 2


def test_operands_in_parts_have_the_errors_that_step_8_names():
    step = guide.module("step_08_precision")
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 2000, 32, generator=rng)
    kinds = ("bf16", "tf32", "tf32, rounded", "bf16x3", "tf32x3", "bf16x6")
    of = {how: step.error_of_operands(a, b, how) for how in kinds}
    # Rounding to n bits costs about 2^-n / 3 in each operand; cutting off costs twice that, and all in one direction.
    assert 1e-3 < of["bf16"] < 4e-3
    assert 2e-4 < of["tf32, rounded"] < 4e-4
    assert of["tf32"] > 2 * of["tf32, rounded"]
    assert of["bf16x3"] < 1e-5
    assert of["tf32x3"] < 1e-6
    assert of["bf16x6"] < 2.0**-24


def test_an_accumulator_in_half_precision_loses_more_than_operands_in_it():
    step = guide.module("step_08_precision")
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 2000, 32, generator=rng)
    of = {dtype: step.error_of_accumulator(a, b, dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)}
    assert of[torch.bfloat16] > 2 * step.error_of_operands(a, b, "bf16")
    assert of[torch.float32] < 1e-6 < of[torch.float16] < of[torch.bfloat16]


def test_the_page_names_every_file_of_the_guide_and_has_its_marks():
    text = (ROOT / "docs" / "kernels.md").read_text()
    names = [path.name for path in guide.FOLDER.glob("*.py")]
    assert len(names) > 16
    assert [name for name in names if f"](../examples/triton_guide/{name})" not in text] == []
    places = [text.index(f"{step}.py)") for step in guide.STEPS]
    assert places == sorted(places)
    figures = guide.module("figures")
    assert text.count(figures.BEGIN) == text.count(figures.END) == 1
    assert text.index(figures.BEGIN) < text.index(figures.END)


def code_of(text: str) -> str:
    """The lines of a file or an excerpt without indentation and without the comments behind them."""
    return "".join(f"{line.partition('  #')[0].strip()}\n" for line in text.splitlines())


@pytest.mark.parametrize("step", guide.STEPS)
def test_the_code_of_a_section_is_that_of_its_step(step):
    page = (ROOT / "docs" / "kernels.md").read_text()
    (section,) = [part for part in page.split("\n## ") if f"{step}.py)" in part.partition("\n")[0]]
    source = code_of((guide.FOLDER / f"{step}.py").read_text())
    for excerpt in re.findall(r"```text\n(.*?)```", section, flags=re.DOTALL):
        at = 0
        for stretch in code_of(excerpt).split("...\n"):
            found = source.find(f"\n{stretch}", at)
            assert found >= 0, f"not in the file, or not in this order:\n{stretch}"
            at = found + len(stretch)


@pytest.fixture
def rows():
    """Rows as `run.py` writes them; the times are made up."""
    figures = guide.module("figures")
    on = {"device": "a card", "torch": "1", "triton": "2", "date": "2000-01-01", "K": 128, "C": 128}
    variants = [(*variant, "fp32") for variant in figures.PATH] + [("step_05_x", "mass on features", "bf16")]
    return [
        {"step": step, "variant": name, "dtype": dtype, "V": V, "gpu_us": V / 500 + n, "error": V * 1e-12, **on}
        for n, (step, name, dtype) in enumerate(variants)
        for V in (1_000, 64_000)
    ]


def test_all_steps_and_then_the_finished_operator_are_measured(monkeypatch):
    run, figures = guide.module("run"), guide.module("figures")
    monkeypatch.setattr(run, "rows", lambda step, variants, _: [{"step": step, "variant": name} for name in variants])
    monkeypatch.setattr(run, "about", lambda _: {})
    found = [(row["step"], row["variant"]) for row in run.measure("")]
    assert list(dict.fromkeys(step for step, _ in found)) == [*guide.STEPS, figures.FINISHED]
    assert set(figures.PATH) <= set(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "must be files"), ("{", "one JSON object a line"), ('{"V": 1}', "must be rows"), ("", "must be rows")],
)
def test_figures_of_no_rows_are_one_line(text, words, tmp_path, monkeypatch):
    results = tmp_path / "rows.jsonl"
    if text is not None:
        results.write_text(text)
    (tmp_path / "kernels.md").write_text("")
    monkeypatch.setattr(sys, "argv", ["run.py", "--figures", str(results), "--docs", str(tmp_path)])
    with pytest.raises(SystemExit, match=words):
        guide.module("run").main()


def test_figures_fill_the_table_between_the_marks_and_repeat(rows, tmp_path, monkeypatch):
    figures = guide.module("figures")
    results, page, plot = tmp_path / "guide.jsonl", tmp_path / "kernels.md", tmp_path / "kernels.svg"
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page.write_text(f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter\n")
    monkeypatch.setattr(sys, "argv", ["run.py", "--figures", str(results), "--docs", str(tmp_path)])
    guide.module("run").main()
    text, drawing = page.read_text(), plot.read_bytes()
    figures.remake(results, tmp_path)
    assert (page.read_text(), plot.read_bytes()) == (text, drawing)
    assert text.startswith(
        f"before\n{figures.BEGIN}\nGPU time in us, K = C = 128: a card, torch 1, triton 2, 2000-01-01"
    )
    assert text.endswith(f"](kernels.svg)\n{figures.END}\nafter\n")
    assert "| step | variant | 1k | 64k | error |" in text
    assert "| 01 | eager | 2.0 | 128.0 | 6.4e-08 |" in text
    assert "| finished | flashheat.diffuse | 8.0 | 134.0 | 6.4e-08 |" in text
    assert "| 05 | mass on features, bf16 | 9.0 | 135.0 | 6.4e-08 |" in text


@pytest.mark.parametrize("text", ["no marks", "<!-- guide: end -->\n<!-- guide: begin -->"])
def test_figures_refuse_a_page_without_its_marks_and_leave_it(rows, tmp_path, text):
    results, page = tmp_path / "guide.jsonl", tmp_path / "kernels.md"
    results.write_text(json.dumps(rows[0]))
    page.write_text(text)
    with pytest.raises(FlashheatError, match="must have the lines <!-- guide: begin -->"):
        guide.module("figures").remake(results, tmp_path)
    assert page.read_text() == text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", guide.STEPS)
def test_every_variant_is_timed_on_a_gpu(step):
    harness, module = guide.module("harness"), guide.module(step)
    dtypes = getattr(module, "DTYPES", (torch.float32,))
    for row in harness.rows(step, module.variants(), dtypes, sizes=(1_000,)):
        assert row["gpu_us"] > 0, row
        assert row["error"] <= harness.LIMITS[torch.bfloat16 if row["dtype"] == "bf16" else torch.float32], row


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("step", guide.STEPS)
@pytest.mark.parametrize(("V", "K", "C"), [(1001, 128, 128), (20_011, 100, 48)])
def test_every_variant_is_as_exact_as_its_products_on_a_gpu(step, V, K, C):
    harness = guide.module("harness")
    case = harness.arguments(V, K, C, "cuda")
    for name, call in guide.module(step).variants().items():
        assert harness.error(call, case) < TOLERANCES.get(name, TOLERANCE), name


def _errors(step: str) -> list[tuple[str, float]]:
    """The error of each variant and shape; and the step runs as a program, which must not fail."""
    harness, found = guide.module("harness"), []
    variants = {name: run for name, run in guide.module(step).variants().items() if name not in NOT_HERE}
    for shape in SHAPES:
        case = harness.arguments(*shape, "cpu")
        for name, run in variants.items():
            found.append((f"{name}, V, K, C {shape}", harness.error(run, case)))
    if step == "step_12_backward":
        found += _errors_of_derivatives(variants)
    if step == "step_14_packed_meshes":
        found.append(("sixteen meshes", _error_of_packed(variants)))
    for run in variants.values():
        harness.call(run, case)()  # what would be timed
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(guide.FOLDER / f"{step}.py"), run_name="__main__")
    return found


def _errors_of_derivatives(variants: dict) -> list[tuple[str, float]]:
    harness, step = guide.module("harness"), guide.module("step_12_backward")
    case = harness.arguments(*SHAPES[-1], "cpu")
    exact = step.derivatives(guide.module("step_01_five_lines").five_lines, *[t.double() for t in case])
    return [
        (f"{which}, {name}", harness.relative(ours, wanted))
        for name, run in variants.items()
        for which, ours, wanted in zip(("d_x", "d_times"), step.derivatives(run, *case), exact, strict=True)
    ]


def _error_of_packed(variants: dict) -> float:
    """Of the spectra of sixteen meshes, some without a vertex, against the loop over them in float64."""
    harness = guide.module("harness")
    case = harness.arguments(*SHAPES[-1], "cpu")
    exact = variants["a loop over the meshes"].prepare(*[t.double() for t in case])()
    return harness.relative(variants["packed by offsets"].prepare(*case)(), exact)


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)  # new memory holds NaN, so that what is not written shows
    json.dump({step: _errors(step) for step in sys.argv[1:]}, sys.stdout)
