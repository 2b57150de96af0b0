"""Tuned tiles: which is kept, where, and when it is used; the timing itself needs a GPU."""

import json
import logging

import pytest
import torch

from flashheat.bench import tune
from flashheat.errors import FlashheatError
from flashheat.ops import launch, tuned
from flashheat.ops.tiles import Tile, choose_tile
from flashheat.ops.tuned import Tuned

DEVICE = "A card, made up"
FAST, SLOW = Tile(64, 64, 64, 4, 4, 1, "half"), Tile(32, 32, 32, 4, 1, 1, "half")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHHEAT_TUNED", str(tmp_path))
    tuned.load.cache_clear()
    launch.cut.cache_clear()
    yield tmp_path
    tuned.load.cache_clear()
    launch.cut.cache_clear()


def entry(V: int, tile: Tile = FAST, **other) -> Tuned:
    return Tuned(**{"precision": "half", "V": V, "K": 128, "C": 64, "tile": tile, "us": 5.0, "table_us": 9.0} | other)


@pytest.mark.parametrize(("fast", "kept"), [(8.0, True), (9.9, False), (11.0, False)])
def test_a_tile_is_kept_if_it_is_clearly_faster_than_the_table(fast, kept):
    times = {None: 10.0, FAST: fast, SLOW: 12.0}
    assert tune.best(times.__getitem__, [SLOW, FAST]) == ((FAST, fast, 10.0) if kept else None)
    assert tune.best(times.__getitem__, []) is None


def test_what_is_kept_serves_the_shapes_near_it_and_no_others():
    assert tuned.choose(DEVICE, "half", 5_000, 128, 64) is None
    tuned.save(DEVICE, [entry(5_000), entry(20_000, SLOW)])
    assert tuned.choose(DEVICE, "half", 5_000, 128, 64) == FAST
    assert tuned.choose(DEVICE, "half", 7_400, 128, 64) == FAST
    assert tuned.choose(DEVICE, "half", 14_000, 128, 64) == SLOW
    for precision, V, K, C in (("half", 8_000, 128, 64), ("high", 5_000, 128, 64), ("half", 5_000, 64, 64)):
        assert tuned.choose(DEVICE, precision, V, K, C) is None
    assert tuned.choose("Another card", "half", 5_000, 128, 64) is None


def test_a_shape_measured_again_replaces_the_older_one():
    tuned.save(DEVICE, [entry(5_000), entry(20_000)])
    tuned.save(DEVICE, [entry(5_000, SLOW)])
    assert tuned.choose(DEVICE, "half", 5_000, 128, 64) == SLOW
    assert tuned.choose(DEVICE, "half", 20_000, 128, 64) == FAST


def test_a_launch_takes_the_tuned_tile_and_else_that_of_the_table():
    device = launch.DeviceSize(132, True, DEVICE)
    assert launch.cut(5_000, 1, 128, 64, False, "half", device).tile == choose_tile("half", 5_000)
    tuned.save(DEVICE, [entry(5_000, SLOW)])
    launch.cut.cache_clear()
    assert launch.cut(5_000, 1, 128, 64, False, "half", device).tile == SLOW
    assert launch.cut(5_000, 1, 128, 128, False, "half", device).tile == choose_tile("half", 5_000)


@pytest.mark.parametrize("content", ["{", "[]", '{"triton": 1}'])
def test_a_damaged_file_is_one_warning_and_the_table_serves(content, caplog):
    tuned.file_of(DEVICE).write_text(content)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert tuned.choose(DEVICE, "half", 5_000, 128, 64) is None
    assert len(caplog.messages) == 1
    assert "flashheat tune" in caplog.messages[0]


def test_what_was_measured_with_another_kernel_is_not_used(caplog):
    path = tuned.save(DEVICE, [entry(5_000)])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"kernel": "another"}))
    tuned.load.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert tuned.choose(DEVICE, "half", 5_000, 128, 64) is None
    assert "another kernel" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0], 128, 128, ["half"]), "size"),
        (([100], 513, 128, ["half"]), "K"),
        (([100], 128, 0, ["half"]), "C"),
        (([100], 128, 128, ["bf16"]), "precision"),
    ],
)
def test_what_cannot_be_tuned_is_refused_by_name(arguments, words):
    with pytest.raises(FlashheatError, match=f"a {words} to tune"):
        tune.run(*arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the case without a device")
def test_without_a_device_it_says_so():
    with pytest.raises(FlashheatError, match="needs a CUDA device"):
        tune.run([100], 128, 128, ["half"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tuning_on_a_gpu_keeps_only_what_is_exact_and_faster():
    tune.run([3_000], 64, 64, ["half"])
    for found in tuned.load(torch.cuda.get_device_name()):
        assert found.us < found.table_us
        assert found.tile in list(tune.exact("half", 64, 64))
