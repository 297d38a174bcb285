"""Mixing against a loop, and the weights of mixing."""

import torch

from comatch.augment.mixing import Mix, mix, sample_mix

CPU = torch.device("cpu")


def test_each_row_is_mixed_with_its_partner():
    torch.manual_seed(0)
    drawn = Mix(torch.tensor([2, 1, 0, 0]), torch.tensor([0.5, 0.75, 0.9, 1.0]))
    images, labels = torch.rand(4, 3, 5, 5, dtype=torch.float64), torch.rand(4, 6)
    for rows in (images, labels):
        pairs = zip(rows, drawn.order.tolist(), drawn.share.tolist(), strict=True)
        expected = torch.stack(
            [share * row + (1 - share) * rows[other] for row, other, share in pairs]
        )
        torch.testing.assert_close(mix(rows, drawn), expected, rtol=1e-6, atol=1e-7)


def test_each_row_has_a_weight_of_at_least_a_half():
    torch.manual_seed(0)
    order, share = sample_mix(2000, 0.75, CPU)
    assert sorted(order.tolist()) == list(range(2000))
    assert share.min() >= 0.5
    assert share.max() <= 1.0
    assert 0.75 < share.mean() < 0.9  # E max(l, 1 - l) for Beta(0.75, 0.75) is 0.79
    assert sample_mix(2000, 100.0, CPU).share.mean() < 0.55
    assert sample_mix(2000, 1e-3, CPU).share.isfinite().all()  # both Gammas may be zero
