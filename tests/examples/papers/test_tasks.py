"""The tasks are those of the papers."""

from __future__ import annotations

import math

import pytest
import torch

from examples.papers import scores, tasks
from examples.papers.tasks import ptb, speech
from examples.papers.tasks.adding import Adding


def build(name, seed=0, **arguments):
    return tasks.build({"name": name, "batch_size": 4, "tiny": True, **arguments}, seed)


SETTINGS = {
    "adding": {"length": 20},
    "copying": {"length": 8},
    "digits": {},
    "mnist": {"permutation_seed": 1, "shift": 2},
    "ptb": {"length": 10},
    "speech": {"corpus": "an4"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_batches_depend_on_seed_and_step_alone(name) -> None:
    one, same, other = (build(name, seed, **SETTINGS[name]) for seed in (1, 1, 2))
    for step in (0, one.steps_per_epoch, 2):
        assert torch.equal(one.batch(step).inputs, same.batch(step).inputs)
    assert not torch.equal(one.batch(0).inputs, one.batch(1).inputs)
    first, second = one.batch(2).inputs, other.batch(2).inputs
    assert first.shape != second.shape or not torch.equal(first, second)


@pytest.mark.parametrize("name", SETTINGS)
def test_parts_of_a_batch_add_up_to_its_loss(name) -> None:
    task = build(name, **SETTINGS[name])
    batch = task.batch(0)
    outputs = torch.randn(*batch.targets.shape[:2], task.output_size)
    whole = task.loss(outputs, batch)
    parts = [task.loss(outputs[:, columns], batch.part(columns)) for columns in (slice(0, 1), slice(1, 4))]
    torch.testing.assert_close(sum(parts), whole)
    assert batch.part(slice(0, 1)).count == batch.count


@pytest.mark.parametrize("length", [20, 11])
def test_adding_marks_one_number_before_the_middle_and_one_after(length) -> None:
    task = Adding(length, 4, seed=0, tiny=True)
    numbers, marked = task._make(20_000, torch.Generator().manual_seed(0))
    first, second = marked + 1  # Times from 1 to T.
    assert (int(first.min()), int(first.max())) == (1, math.ceil(length / 2) - 1)
    assert (int(second.min()), int(second.max())) == (math.ceil(length / 2), length - 1)
    batch = task._batch(numbers, marked)
    assert torch.equal(batch.inputs[..., 1].sum(dim=0), torch.full((20_000,), 2.0))
    torch.testing.assert_close(batch.inputs.prod(dim=-1).sum(dim=0), batch.targets[0])
    always_one = torch.ones(1, 20_000, 1)
    assert float(task.loss(always_one, batch)) / batch.count == pytest.approx(task.baseline, rel=0.03)


@pytest.mark.parametrize("markers", [1, 2])
def test_copying_is_laid_out_as_the_papers_say(markers) -> None:
    task = build("copying", length=8, markers=markers)
    batch = task.batch(0)
    symbols, targets = batch.inputs.argmax(dim=-1), batch.targets
    assert symbols.shape == (28, 4)
    digits = symbols[:10]
    assert ((digits >= 1) & (digits <= 8)).all()
    assert (symbols[17] == 9).all(), "ten steps remain for the answer"
    assert (symbols == 9).sum() == 4 * markers
    assert (symbols[10] == (9 if markers == 2 else 0)).all()
    assert torch.equal(targets[18:], digits)
    assert not targets[:18].any()
    guess = torch.full((28, 4, 9), -1e9)
    guess[:18, :, 0] = 0
    guess[18:, :, 1:] = 0
    assert float(task.loss(guess, batch)) / batch.count == pytest.approx(task.baseline, rel=1e-5)


def test_mnist_is_permuted_alike_in_all_parts() -> None:
    plain, permuted = build("mnist"), build("mnist", permutation_seed=92916)
    order = permuted.permutation
    assert torch.equal(order.sort().values, torch.arange(49))
    assert not torch.equal(order, torch.arange(49))
    for split in ("validation", "test"):
        for a, b in zip(plain.evaluation(split), permuted.evaluation(split), strict=True):
            assert torch.equal(a.inputs[order], b.inputs)
            assert torch.equal(a.targets, b.targets)


def test_images_are_moved_before_the_permutation_and_only_in_training() -> None:
    plain, moved = (build("mnist", shift=shift, permutation_seed=1) for shift in (0, 2))
    originals = plain.batch(0).inputs[plain.permutation.argsort()]
    images = moved.batch(0).inputs[moved.permutation.argsort()]
    found = set()
    for original, image in zip(*(x[..., 0].T.view(-1, 7, 7) for x in (originals, images)), strict=True):
        wide = torch.nn.functional.pad(original, [2] * 4)
        windows = wide.unfold(0, 7, 1).unfold(1, 7, 1)
        found.update(map(tuple, (windows == image).all(dim=(2, 3)).nonzero().tolist()))
    assert len(found) >= 3, "each image is the window of its padded original, and not all are alike"
    assert not torch.equal(moved.batch(0).inputs, moved.batch(moved.steps_per_epoch).inputs)
    for a, b in zip(plain.evaluation("validation"), moved.evaluation("validation"), strict=True):
        assert torch.equal(a.inputs, b.inputs)


@pytest.mark.parametrize("batch_size", [3, 4])
def test_every_character_but_the_first_is_predicted_once_in_order(batch_size) -> None:
    text = torch.randint(50, (101,))
    batches = ptb._batches(text, batch_size, length=10)
    inputs = torch.cat([batch.inputs for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    assert torch.equal(inputs.T.flatten()[:100], text[:-1])
    counted = targets.T.flatten()
    assert torch.equal(counted[counted != ptb.PADDING], text[1:])
    assert sum(batch.count for batch in batches) == 100


def test_bits_per_character_of_a_guess() -> None:
    task = build("ptb", length=10)
    batch = task.batch(0)
    loss = task.loss(torch.zeros(*batch.targets.shape, 50), batch) / batch.count
    assert task.from_mean(float(loss)) == pytest.approx(math.log2(50))


def test_padding_of_speech_does_not_count() -> None:
    task = build("speech", corpus="an4")
    batch = task.batch(0)
    assert len(set(batch.weights.sum(dim=0).tolist())) > 1, "utterances of different lengths"
    right = batch.targets.clone()
    right[batch.weights == 0] = 1e3
    assert task.loss(right, batch) == 0
    wrong = batch.targets + 2.0
    assert float(task.loss(wrong, batch)) / batch.count == pytest.approx(4, rel=1e-5)
    assert batch.count == batch.weights.sum()


def test_normalized_speech_is_judged_in_decibels() -> None:
    plain, normalized = (build("speech", corpus="an4", normalize=n) for n in (False, True))
    one, other = plain.batch(0), normalized.batch(0)
    assert torch.equal(one.targets, other.targets)
    torch.testing.assert_close(normalized._decibels(other.inputs), one.inputs, atol=1e-3, rtol=0)
    torch.testing.assert_close(
        plain.loss(one.inputs, one), normalized.loss(other.inputs, other), atol=0, rtol=1e-3
    )
    guess = normalized.loss(torch.zeros_like(other.targets), other) / other.count
    assert float(guess) == pytest.approx(normalized.baseline, rel=0.5)
    assert normalized.baseline == plain.baseline


def test_true_frames_give_the_true_audio_back() -> None:
    audio = torch.sin(torch.arange(4000) / 5) / 2 + 0.05 * torch.randn(4000)
    frames = speech.decibels(audio)
    assert frames.shape == (1 + 4000 // 128, 129)
    again = speech.reconstruct(audio, frames[1:])
    torch.testing.assert_close(again, audio, atol=1e-3, rtol=0)
    assert scores.segmental_snr(audio, again) > 34
    worse = speech.reconstruct(audio, frames[1:] + torch.randn(len(frames) - 1, 129))
    assert scores.segmental_snr(audio, worse) < 25


def test_segmental_snr_is_the_ratio_of_each_frame_within_its_bounds() -> None:
    x = torch.ones(400)
    assert scores.segmental_snr(x, 1.1 * x) == pytest.approx(20, abs=1e-4)
    assert scores.segmental_snr(x, x) == 35
    assert scores.segmental_snr(x, 100 * x) == -10
    silence = torch.cat([x, torch.zeros(400)])
    assert scores.segmental_snr(silence, torch.cat([1.1 * x, x])) == pytest.approx(20, abs=1e-4)


def test_perceptual_scores_fall_with_noise() -> None:
    pytest.importorskip("pystoi")
    pytest.importorskip("pesq")
    time = torch.arange(16_000) / 8000
    # A voice of sorts: harmonics of 120 Hz, on and off.
    voice = sum(torch.sin(2 * math.pi * 120 * k * time) / k for k in range(1, 20))
    voice = 0.2 * voice * (torch.sin(2 * math.pi * 3 * time) > -0.5)
    noisy = voice + 0.1 * torch.randn(16_000)
    good, bad = (scores.perceptual([(voice, other)]) for other in (voice + 1e-4 * torch.randn(16_000), noisy))
    for name in ("SegSNR", "STOI", "PESQ"):
        assert good[name] > bad[name]
        assert good[f"{name} utterances"] == 1
    short = scores.perceptual([(voice[:1000], noisy[:1000])])
    assert short["STOI"] is None
    assert short["STOI utterances"] == 0


def test_missing_packages_leave_their_scores_out(monkeypatch) -> None:
    monkeypatch.setattr(scores.importlib.util, "find_spec", lambda name: None)
    found = scores.perceptual([(torch.ones(400), torch.ones(400))])
    assert found == {"SegSNR": 35.0, "SegSNR utterances": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sorting"}, "expected one of adding, copying, digits, mnist, ptb, speech, got 'sorting'"),
        ({"name": "adding", "length": 20, "batch": 4}, "task adding: .*batch"),
        ({"name": "adding", "length": 2, "batch_size": 4}, "length: expected at least 4, got 2"),
        ({"name": "copying", "length": 8, "batch_size": 4, "markers": 3}, "markers: expected 1 or 2, got 3"),
        ({"name": "speech", "corpus": "wsj", "batch_size": 4}, "expected one of an4, timit, got 'wsj'"),
        ({"name": "ptb", "length": 0, "batch_size": 4}, "length: expected at least 1, got 0"),
        (
            {"name": "mnist", "batch_size": 4, "shift": 7, "tiny": True},
            "shift: expected 0 to 6 pixels, got 7",
        ),
        ({"name": "mnist", "batch_size": 10_000, "tiny": True}, "batch_size: expected 1 to 48, got 10000"),
    ],
)
def test_bad_settings_are_named(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        tasks.build(settings, seed=0)
