"""Methods without labels against plain loops that were written from their papers."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

from comatch import losses, methods
from comatch.clustering import kmeans
from comatch.errors import UserError
from comatch.methods.pretraining import pcl, pirl, swav
from comatch.nets import build_encoder
from comatch.nets.split_batchnorm import SplitBatchNorm, split_batchnorm
from comatch.types import AllImages, Task
from helpers import SMALL, random_batches

IMAGES, N, D = 12, 8, 5
TASK = Task(0, steps=10, unlabelled=IMAGES, epoch=2)


def build(name, **settings):
    torch.manual_seed(0)
    config = dataclasses.replace(methods.config(name), **{**SMALL.get(name, {}), **settings})
    return methods.build(config, build_encoder("wrn-10-1", 8), TASK).double()


def a_batch(method):
    return next(random_batches(1, 0, N, len(method.views), 2, IMAGES))


def units(rows, width=D, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)


def unit(row):
    return row / row.norm()


def close(value, expected):
    torch.testing.assert_close(
        torch.as_tensor(value, dtype=torch.float64).detach(),
        torch.as_tensor(expected, dtype=torch.float64).detach(),
        rtol=1e-9,
        atol=1e-11,
    )


def log_share(first, others):
    """log exp(first) / (exp(first) + sum exp(others))"""
    return first - math.log(math.exp(first) + sum(map(math.exp, others)))


# ----------------------------------------------------------------------------------- SimCLR


def test_simclr_equation_1():
    """The mean of l(2k-1, 2k) + l(2k, 2k-1) over the pairs, over 2N."""
    z, other, t = units(4), units(4, seed=1), 0.5
    views = [row for pair in zip(z, other, strict=True) for row in pair]  # 2k-1 and 2k: a pair
    total = 0.0
    for i, row in enumerate(views):
        j = i + 1 if i % 2 == 0 else i - 1
        similarity = [float(row @ one) / t for one in views]
        rest = [s for k, s in enumerate(similarity) if k not in (i, j)]
        total -= log_share(similarity[j], rest)
    close(losses.nt_xent(z, other, t), total / len(views))


def test_simclr_normalises_and_uses_both_views_in_one_forward():
    method = build("simclr")
    batch = a_batch(method)
    z = copy.deepcopy(method.net)(torch.cat(batch.u))
    z = torch.stack([unit(row) for row in z])
    close(method(batch).loss, losses.nt_xent(z[:N], z[N:], 0.1))


# ---------------------------------------------------------------------------------- MoCo v2


def test_moco_algorithm_1():
    method = build("moco_v2", norm_groups=1)
    batch, t = a_batch(method), 0.2
    query, key = (copy.deepcopy(net).requires_grad_(False) for net in method.networks)
    queue = method.queue.rows.clone()
    q = [unit(row) for row in query(batch.u[0])]
    k = [unit(row) for row in key(batch.u[1])]
    total = 0.0
    for q_i, k_i in zip(q, k, strict=True):
        total -= log_share(float(q_i @ k_i) / t, [float(q_i @ row) / t for row in queue])
    step = method(batch)
    close(step.loss, total / N)
    before = copy.deepcopy(key.projector.layers[0].weight)
    with torch.no_grad():
        method.net.projector.layers[0].weight.add_(1)
    method.after_step(step.remember)
    close(method.queue.rows[:N], torch.stack(k))
    close(method.queue.rows[N:], queue[N:])
    close(method.ema.net.projector.layers[0].weight, before + 0.001)


def test_split_batch_norm_is_that_of_parts_on_their_own():
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).double()
    parts = [copy.deepcopy(whole) for _ in range(4)]
    split_batchnorm(whole, 4)
    x = torch.randn(8, 3, 6, 6, dtype=torch.float64)
    expected = [part(some) for part, some in zip(parts, x.split(2), strict=True)]
    close(whole(x), torch.cat(expected))
    for name in ("running_mean", "running_var"):
        close(getattr(whole[1], name), torch.stack([getattr(p[1], name) for p in parts]).mean(0))
    whole.eval()
    parts[0].load_state_dict(whole.state_dict())
    close(whole(x), parts[0].eval()(x))


def test_keys_are_normalised_with_other_images_than_queries():
    """Of the same images, queries and keys come from the same weights, but from other parts."""
    method = build("moco_v2")
    assert any(isinstance(m, SplitBatchNorm) for m in method.ema.net.modules())
    batch = a_batch(method)
    batch = batch._replace(u=(batch.u[0], batch.u[0]))
    method.eval()  # with running statistics
    q, k = method.embed(batch)
    close(q, k)  # the keys are back in the order of the images
    method.train()
    q, k = method.embed(batch)
    assert not torch.allclose(q, k)


# ------------------------------------------------------------------------------------- BYOL


def test_byol_equation_2_in_both_orders():
    method = build("byol")
    v, other = (batch := a_batch(method)).u
    online, target, predictor = (
        copy.deepcopy(m) for m in (method.net, method.ema.net, method.predictor)
    )
    total = 0.0
    for x, y in ((v, other), (other, v)):
        for p, z in zip(predictor(online(x)), target(y), strict=True):
            total += float((unit(p) - unit(z)).square().sum())
    close(method(batch).loss, total / N)


@pytest.mark.parametrize("k", [0, 5, 10])
def test_byol_momentum_grows_to_one(k):
    method = build("byol")
    method.step.fill_(k)
    expected = 1 - (1 - 0.996) * (math.cos(math.pi * k / 10) + 1) / 2
    assert method.decay.item() == pytest.approx(expected, abs=1e-6)


# ------------------------------------------------------------------------------------- SwAV


def sinkhorn_of_the_paper(scores, epsilon, iterations):
    """Listing in SwAV's appendix, one entry at a time: rows of Q are prototypes."""
    many, k = scores.shape
    q = [[math.exp(float(scores[b, j]) / epsilon) for b in range(many)] for j in range(k)]
    for _ in range(iterations):
        for j in range(k):
            total = sum(q[j])
            q[j] = [value / total / k for value in q[j]]
        for b in range(many):
            total = sum(q[j][b] for j in range(k))
            for j in range(k):
                q[j][b] /= total * many
    rows = [[q[j][b] * many for j in range(k)] for b in range(many)]
    return torch.tensor(rows, dtype=torch.float64)


def test_swav_swapped_prediction_with_multi_crop():
    method = build("swav")
    method.step.fill_(2)  # prototypes learn from the second epoch on
    batch, t = a_batch(method), 0.1
    net = copy.deepcopy(method.net)
    features = torch.cat([net.encoder(torch.cat(some)) for some in (batch.u[:2], batch.u[2:])])
    z = [torch.stack([unit(row) for row in view]) for view in net.projector(features).split(N)]
    scores = [view @ method.prototypes.T for view in z]
    q = [sinkhorn_of_the_paper(s, 0.05, 3) for s in scores[:2]]
    close(swav.sinkhorn(scores[0], 0.05, 3), q[0])
    total, pairs = 0.0, 0
    for i in range(2):
        for v in range(len(scores)):
            if v == i:
                continue
            pairs += 1
            for b in range(N):
                row = [float(s) / t for s in scores[v][b]]
                for k, share in enumerate(q[i][b]):
                    others = [s for j, s in enumerate(row) if j != k]
                    total -= float(share) * log_share(row[k], others) / N
    close(method(batch).loss, total / pairs)


def test_swav_prototypes_have_length_one_and_wait_an_epoch():
    method = build("swav")
    for step in range(3):
        method.zero_grad()
        out = method(a_batch(method))
        out.loss.backward()
        assert bool(method.prototypes.grad.any()) == (step >= TASK.epoch)
        with torch.no_grad():
            method.prototypes.add_(0.3)
        method.after_step(out.remember)
        close(method.prototypes.norm(dim=1), torch.ones(6))


# ------------------------------------------------------------------------------------- PIRL


def test_pirl_equations_4_and_5():
    a, own, others, t = units(3), units(3, seed=1), units(4, seed=2), 0.07
    itself = torch.zeros(3, 4, dtype=torch.bool)
    itself[1, 2] = True
    total = 0.0
    for i in range(3):
        positive = float(own[i] @ a[i]) / t
        negatives = [float(others[j] @ a[i]) / t for j in range(4) if not itself[i, j]]
        total -= log_share(positive, negatives)
        for j, negative in enumerate(negatives):
            rest = [positive, *negatives[:j], *negatives[j + 1 :]]
            total -= math.log(1 - math.exp(log_share(negative, rest)))
    torch.testing.assert_close(
        pirl.noise_contrast(a, own, others, itself, t).item(), total / 3, rtol=1e-6, atol=1e-6
    )


def test_pirl_encodes_nine_patches_in_their_order():
    method = build("pirl")
    puzzles = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    cut = pirl.patches(puzzles)
    for image in range(2):
        for place in range(9):
            y, x = 3 * (place // 3), 3 * (place % 3)
            assert torch.equal(cut[9 * image + place], puzzles[image, :, y : y + 3, x : x + 3])
    method.eval()
    one = torch.cat([method.patch_head(method.net.encoder(patch[None]))[0] for patch in cut[:9]])
    close(method.solve(puzzles)[0], method.puzzle_head(one))


def test_pirl_memory_moves_halfway_to_the_image():
    method = build("pirl")
    batch = a_batch(method)
    before = method.bank.rows.clone()
    assert torch.allclose(before.norm(dim=1), torch.ones(IMAGES, dtype=torch.float64))
    step = method(batch)
    method.after_step(step.remember)
    v = step.remember["bank"][1]
    for row, image in enumerate(batch.rows.tolist()):
        close(method.bank.rows[image], (before[image] + v[row]) / 2)
    rest = sorted(set(range(IMAGES)) - set(batch.rows.tolist()))
    assert torch.equal(method.bank.rows[rest], before[rest])


# -------------------------------------------------------------------------------------- PCL


def test_pcl_equation_11():
    method = build("pcl", negatives=100, norm_groups=1)  # so all other prototypes are used
    keys = units(IMAGES, 128, seed=3)
    with torch.no_grad():
        for m, k in enumerate(method.sizes):
            getattr(method, f"centroids{m}").copy_(units(k, 128, seed=m))
            getattr(method, f"concentration{m}").copy_(torch.rand(k) + 0.1)
            getattr(method, f"cluster_of{m}").copy_(torch.arange(IMAGES) % k)
        method.clustered.fill_(1)
    assert len(keys) == IMAGES
    batch = a_batch(method)
    q = [unit(row) for row in copy.deepcopy(method.net)(batch.u[0])]
    total = 0.0
    for b, image in enumerate(batch.rows.tolist()):
        for m, k in enumerate(method.sizes):
            c, phi = getattr(method, f"centroids{m}"), getattr(method, f"concentration{m}")
            logits = [float(q[b] @ c[j]) / float(phi[j]) for j in range(k)]
            s = image % k
            total -= log_share(logits[s], [x for j, x in enumerate(logits) if j != s])
    step = method(batch)
    close(step.metrics["loss_prototype"], total / N / len(method.sizes))
    close(step.loss, step.metrics["loss_contrast"] + step.metrics["loss_prototype"])


def test_pcl_concentration_of_equation_12():
    keys = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = kmeans(keys, 4)
    phi = []
    for c in range(4):
        of_it = [x for x, a in zip(keys, found.assignment, strict=True) if a == c]
        distances = sum(float((x - found.centroids[c]).norm()) for x in of_it)
        phi.append(distances / (len(of_it) * math.log(len(of_it) + 10)))
    phi = torch.tensor(phi, dtype=torch.float64)
    phi = phi.clamp(phi.quantile(0.1), phi.quantile(0.9))
    close(pcl.concentration(keys, found, 10.0, 0.2), 0.2 * phi / phi.mean())


def test_pcl_clusters_once_an_epoch_after_the_share_without():
    method = build("pcl", instance_share=0.4)
    images = torch.randn(IMAGES, 3, 8, 8, dtype=torch.float64)
    seen = []
    for step in range(10):
        before = method.state_dict()["cluster_of0"].clone()
        method.before_step(step, AllImages([], torch.empty(0), images.split(5)))
        seen.append((bool(method.clustered), not torch.equal(before, method.cluster_of0)))
    assert [clustered for clustered, _ in seen] == [False] * 4 + [True] * 6
    assert not any(changed for i, (_, changed) in enumerate(seen) if i < 4 or i % 2)
    assert seen[4][1]


def test_kmeans_finds_separate_clusters_and_the_nearest_centroid():
    torch.manual_seed(1)
    centres = 20 * torch.eye(3)
    rows = torch.cat([centre + torch.randn(10, 3) for centre in centres])
    found = kmeans(rows, 3)
    for row, cluster in zip(rows, found.assignment, strict=True):
        assert cluster == min(range(3), key=lambda c: float((row - found.centroids[c]).norm()))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("moco_v2", {"queue_size": 13}, "queue_size=13"),
        ("moco_v2", {"norm_groups": 3, "queue_size": 4}, "norm_groups=3"),
        ("pirl", {"negatives": 13}, "negatives=13"),
        ("pcl", {"clusters": 7}, "clusters=6"),
    ],
)
def test_too_few_images_for_a_memory(name, settings, said):
    settings = {**({"queue_size": 8} if name == "pcl" else {}), **settings}
    with pytest.raises(UserError, match=said):
        build(name, **settings).check_images(IMAGES, N)
