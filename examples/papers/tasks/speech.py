"""Speech: predict the next frame of a spectrogram."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from examples.papers.scores import perceptual
from examples.papers.tasks import corpora
from examples.papers.tasks.task import Batch, Order, Task, generator

WINDOW, HOP, BINS, FLOOR = 256, 128, 129, 1e-5


class Speech(Task):
    """Predict the log magnitudes of the next frame.

    Section 5.4 of Helfrich, Willmott and Ye (2018), section 5.3 of Helfrich and Ye (2020): audio of 8 kHz,
    samples from -1 to 1, Hann window of 256 samples, one frame every 128. A log magnitude is
    10 log10(|X|² + 1e-5), in decibels, as in the code of Wisdom et al. (2016), whose set-up the papers
    take.

    The mean squared error is that of all bins of all frames that exist, each with the same weight; frames
    that fill up shorter utterances do not count. (The two papers differ from each other by a factor of
    five for the same network, so they average in different ways; which, they do not say.)

    Args:
        corpus: ``"an4"`` or ``"timit"``.
        batch_size: Utterances in each step.
        seed: Seed of the order.
        normalize: Whether the network reads and answers in units of each bin's standard deviation from its
            mean in the training data, instead of in decibels. Loss and scores are in decibels all the same.
        tiny: Whether to make up a few short sounds instead of reading the corpus.
    """

    input_size = output_size = BINS
    metric = "MSE"

    def __init__(
        self, corpus: str, batch_size: int, seed: int, normalize: bool = False, tiny: bool = False
    ) -> None:
        if corpus not in corpora.CORPORA:
            raise ValueError(f"corpus: expected one of {', '.join(corpora.CORPORA)}, got {corpus!r}")
        audio = _made_up(seed) if tiny else corpora.CORPORA[corpus]()
        self._frames = {part: [decibels(x) for x in sounds] for part, sounds in audio.items()}
        self._test_audio = audio["test"]
        self._order = Order(len(self._frames["train"]), batch_size, seed)
        self._batch_size = batch_size
        self.steps_per_epoch = self._order.steps_per_epoch
        deviation, mean = torch.std_mean(torch.cat(self._frames["train"]), dim=0)
        self.baseline = float(deviation.square().mean())
        if not normalize:
            deviation, mean = torch.ones(BINS), torch.zeros(BINS)
        self._deviation, self._mean = deviation, mean

    def _batch(self, frames: list[Tensor]) -> Batch:
        lengths = torch.tensor([len(x) - 1 for x in frames])
        padded = nn.utils.rnn.pad_sequence(frames)  # (time, batch, bin)
        weights = (torch.arange(len(padded) - 1)[:, None] < lengths).float()
        inputs = (padded[:-1] - self._mean) / self._deviation
        return Batch(inputs, padded[1:], int(lengths.sum()), weights)

    def _decibels(self, outputs: Tensor) -> Tensor:
        return outputs * self._deviation.to(outputs) + self._mean.to(outputs)

    def batch(self, step: int) -> Batch:
        """Return the utterances of a step; see :meth:`Task.batch`."""
        return self._batch([self._frames["train"][i] for i in self._order(step).tolist()])

    def evaluation(self, split: str) -> Iterator[Batch]:
        """Return held-out utterances in pieces; see :meth:`Task.evaluation`."""
        frames = self._frames[split]
        for first in range(0, len(frames), self._batch_size):
            yield self._batch(frames[first : first + self._batch_size])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum over frames of the mean squared error of their bins; see :meth:`Task.loss`."""
        assert batch.weights is not None
        return ((self._decibels(outputs) - batch.targets).square().mean(dim=-1) * batch.weights).sum()

    @torch.no_grad()
    def final_scores(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """Return SegSNR, STOI and PESQ of the test utterances; see :meth:`Task.final_scores`."""
        pairs = []
        for audio, frames in zip(self._test_audio, self._frames["test"], strict=True):
            outputs, _ = model(self._batch([frames]).inputs.to(device, dtype))
            pairs.append((audio, reconstruct(audio, self._decibels(outputs[:, 0]).float().cpu())))
        return perceptual(pairs)


def transform(audio: Tensor) -> Tensor:
    """Return the short-time Fourier transform ``(frames, 129)``.

    Args:
        audio: Samples from -1 to 1.
    """
    window = torch.hann_window(WINDOW)
    spectrum: Tensor = torch.stft(audio, WINDOW, HOP, window=window, return_complex=True)
    return spectrum.T


def decibels(audio: Tensor) -> Tensor:
    """Return the log magnitudes ``(frames, 129)``.

    Args:
        audio: Samples from -1 to 1.
    """
    return 10 * torch.log10(transform(audio).abs().square() + FLOOR)


def reconstruct(audio: Tensor, predicted: Tensor) -> Tensor:
    """Return audio of predicted magnitudes and the true phases; the first frame is the true one.

    Args:
        audio: The true samples.
        predicted: Log magnitudes ``(frames - 1, 129)`` of all frames but the first.
    """
    spectrum = transform(audio)
    magnitude = (10 ** (predicted / 10) - FLOOR).clamp(min=0).sqrt()
    spectrum[1:] = torch.polar(magnitude, spectrum[1:].angle())
    return torch.istft(spectrum.T, WINDOW, HOP, window=torch.hann_window(WINDOW), length=len(audio))


def _made_up(seed: int) -> dict[str, list[Tensor]]:
    """Return a few sounds of different lengths: tones in noise."""
    audio = {}
    for number, (part, count) in enumerate({"train": 8, "validation": 3, "test": 3}.items()):
        source = generator(seed, "train", number)
        audio[part] = [
            torch.sin(2 * math.pi * (200 + 50 * i) / 8000 * torch.arange(1200 + 160 * i)) / 2
            + 0.01 * torch.randn(1200 + 160 * i, generator=source)
            for i in range(count)
        ]
    return audio
