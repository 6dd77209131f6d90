"""Softmax regression on images: what the studies of training have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdask.types import Floats, Integers

__all__ = ["Images", "load"]

CLASSES = 10


@dataclass(frozen=True, slots=True)
class Images:
    """Images with a constant pixel, and their digits."""

    inputs: Floats
    digits: Integers

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the weights: pixels and classes."""
        return self.inputs.shape[1], CLASSES

    def some(self, indices: Integers) -> Images:
        """Return a part of the images."""
        return Images(self.inputs[indices], self.digits[indices])

    def gradients(self, weights: Floats) -> Floats:
        """Return the gradient of every image's loss, along the first axis."""
        return np.asarray(self.inputs[:, :, None] * self._residuals(weights)[:, None, :])

    def mean_gradient(self, weights: Floats) -> Floats:
        """Return the mean of all gradients."""
        return np.asarray(self.inputs.T @ self._residuals(weights) / len(self))

    def _residuals(self, weights: Floats) -> Floats:
        scores = self.inputs @ weights
        scores -= scores.max(1, keepdims=True)
        likely = np.exp(scores)
        likely /= likely.sum(1, keepdims=True)
        likely[np.arange(len(self)), self.digits] -= 1
        return np.asarray(likely)

    def accuracy(self, weights: Floats) -> float:
        """Return the share of images that the weights classify rightly."""
        return float(np.mean((self.inputs @ weights).argmax(1) == self.digits))


def load(pixels: Floats, digits: Floats) -> tuple[Images, Images]:
    """Return images with pixels in [-1, 1], four fifths to learn from and one to test on."""
    inputs = np.column_stack([(pixels + 1) / 2, np.ones(len(pixels))])
    everything = Images(inputs, digits.astype(np.int64))
    order = np.random.default_rng(7).permutation(len(pixels))
    cut = len(pixels) * 4 // 5
    return everything.some(order[:cut]), everything.some(order[cut:])
