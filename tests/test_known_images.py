"""`fit`: how well an image fits the classes, from distances to labelled images."""

import pytest
import torch
import torch.nn.functional as F

from comatch.evaluation.known_images import LEAST, MOST, NEIGHBOURS, KnownImages, sampled


def around(direction, images, seed):
    """Features near a direction."""
    noise = torch.randn(images, 8, generator=torch.Generator().manual_seed(seed))
    return F.one_hot(torch.tensor(direction), 8).float() + 0.1 * noise


@pytest.fixture
def known():
    return KnownImages.learn(both(50, 0), both(200, 1))


def both(images, seed):
    """Features of two classes."""
    return torch.cat([around(0, images, seed), around(1, images, seed + 100)])


def reference_distance(image, others):
    """The definition, image by image."""
    cosines = sorted(F.cosine_similarity(image, other, dim=0).item() for other in others)
    nearest = cosines[-NEIGHBOURS:]
    return 1 - sum(nearest) / len(nearest)


@pytest.mark.parametrize("held_out", [0, LEAST])
def test_fit_is_the_share_of_held_out_images_that_are_as_far(held_out):
    labelled, others, images = around(0, 30, 0), around(0, held_out, 2), around(0, 10, 1)
    distances = [reference_distance(other, labelled) for other in others] or [
        reference_distance(labelled[i], [*labelled[:i], *labelled[i + 1 :]]) for i in range(30)
    ]
    fits = KnownImages.learn(labelled, others).fit(images).tolist()
    for image, fit in zip(images, fits, strict=True):
        d = reference_distance(image, labelled)
        share = (1 + sum(other >= d for other in distances)) / (1 + len(distances))
        assert fit == pytest.approx(share, abs=0.05)  # features are stored in half precision


def test_images_of_the_classes_have_an_even_fit_and_others_a_low_one(known):
    same = known.fit(both(500, 2))
    assert (same < 0.2).float().mean() == pytest.approx(0.2, abs=0.1)
    assert same.mean() == pytest.approx(0.5, abs=0.1)
    assert (known.fit(around(5, 20, 4)) == known.least).all()


def test_a_larger_distance_never_has_a_larger_fit(known):
    images = torch.cat([around(c, 20, c) for c in range(4)])
    order = known.distance(images).argsort()
    fits = known.fit(images)[order]
    assert (fits.diff() <= 0).all()


def test_the_size_is_bounded():
    stored = KnownImages.learn(torch.randn(MOST + 1, 4), torch.randn(2 * MOST, 4)).to_store()
    assert len(stored["features"]) <= MOST
    assert len(stored["distances"]) <= MOST
    assert stored["features"].dtype == torch.half
    for images in (1, 7, MOST, MOST + 1, 10 * MOST + 3):
        assert 0 < len(range(images)[sampled(images)]) <= MOST


def test_what_is_stored_gives_the_same_fit(known):
    images = around(2, 20, 5)
    assert torch.equal(KnownImages.of(known.to_store()).fit(images), known.fit(images))


def test_a_single_image_is_enough():
    known = KnownImages.learn(around(0, 1, 0), around(0, 0, 0))
    assert 0 <= known.fit(around(3, 2, 1)).min() <= 1
