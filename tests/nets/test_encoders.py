"""Which pre-trained encoder a folder of images gets, and what it says about it."""

import pytest
import torch

from comatch.errors import UserError
from comatch.nets import encoders
from comatch.planning import Request, encoder_lines, plan

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LITE, DINO = encoders.ON_CPU, encoders.ON_GPU
COMMERCIAL = {"Apache-2.0", "MIT", "BSD-3-Clause"}


@pytest.fixture
def hub(monkeypatch):
    """What is cached, and what could be downloaded."""
    state = {"cached": set(), "online": set()}
    monkeypatch.setattr(encoders, "is_cached", lambda name: name in state["cached"])
    monkeypatch.setattr(encoders, "can_download", lambda name: name in state["online"])
    return state


def test_the_recommended_encoders_are_timms_and_free_to_use():
    import timm

    for one in encoders.ENCODERS.values():
        config = timm.models.get_pretrained_cfg(one.name)
        assert config.hf_hub_id == encoders.repository(one.name)
        assert one.licence in COMMERCIAL
        assert config.license in (None, one.licence.lower())  # timm says it since 1.0.22
        with torch.device("meta"):  # sizes without memory
            net = timm.create_model(one.name.split(".")[0])
        assert sum(p.numel() for p in net.parameters()) * 4e-6 == pytest.approx(one.megabytes, 0.05)


@pytest.mark.parametrize(
    ("cached", "online", "gpu", "expected"),
    [
        ({LITE, DINO}, set(), False, LITE),
        ({LITE, DINO}, set(), True, DINO),
        (set(), {LITE, DINO}, False, LITE),
        ({LITE}, {DINO}, True, DINO),
        ({DINO}, set(), False, DINO),  # better slow than from scratch
        (set(), set(), False, None),
    ],
)
def test_the_default_is_what_can_be_had(hub, cached, online, gpu, expected):
    hub["cached"], hub["online"] = cached, online
    found = encoders.first_available(gpu)
    assert (found and found.name) == expected


def test_a_folder_gets_a_frozen_encoder_by_default(hub, images):
    hub["cached"] = {LITE}
    recipe = plan(Request(images), CPU)
    assert (recipe.name, recipe.model.net, recipe.model.init) == (
        "photos",
        "tf_efficientnet_lite0",
        f"timm:{LITE}",
    )
    assert recipe.model.frozen
    assert recipe.dataset.image_size == 224
    assert recipe.dataset.mean == (0.5, 0.5, 0.5)
    text = " ".join(line for _, line in encoder_lines(recipe))
    for fact in (LITE, "19 MB", "Apache-2.0", "comatch encoders"):
        assert fact in text


@pytest.mark.parametrize(
    "options",
    [
        {"encoder": "none"},
        {"recipe": "folder"},
        {"method": "remixmatch"},  # rotates images
        {"settings": {"net": "wrn-10-1"}},
        {"settings": ["image_size=16"]},
    ],
)
def test_unless_the_request_says_otherwise(hub, images, options):
    hub["cached"] = {LITE}
    assert plan(Request(images, **options), CPU).name == "folder"


def test_data_sets_keep_their_recipes(hub):
    hub["cached"] = {LITE}
    assert plan(Request("digits"), CPU).name == "digits"


def test_without_weights_all_is_learned_and_it_says_what_is_better(hub, images):
    recipe = plan(Request(images), CPU)
    assert recipe.name == "folder"
    assert LITE in " ".join(line for _, line in encoder_lines(recipe))


def test_an_encoder_by_name(hub, images):
    recipe = plan(Request(images, encoder="vit_small_patch14_dinov2"), CPU)
    assert (recipe.name, recipe.model.init) == ("photos", f"timm:{DINO}")
    assert recipe.dataset.image_size == 224  # not the 518 pixels that it was trained with
    recipe = plan(
        Request(images, encoder="mobilenetv3_large_100.ra_in1k", settings={"views": 3}), CPU
    )
    assert (recipe.model.net, recipe.features.views) == ("mobilenetv3_large_100", 3)


def test_weights_of_an_encoder_from_a_file(hub, images, tmp_path):
    file = tmp_path / "weights.pth"
    torch.save({}, file)
    recipe = plan(Request(images, encoder="tf_efficientnet_lite0", init=file), CPU)
    assert recipe.model.init == str(file)
    assert recipe.model.frozen


def test_a_time_limit_is_for_encoding(hub, images):
    hub["cached"] = {LITE}
    assert plan(Request(images, time=90), CPU).features.view_seconds == 90
    with pytest.raises(UserError, match="--time"):
        plan(Request(images, time=90, encoder="none"), CPU)


def test_an_unknown_encoder(cli, images):
    code, _, err = cli("train", images, "--encoder", "efficientnet_lite00")
    assert code == 2
    assert "efficientnet_lite" in err
    assert len([line for line in err.splitlines() if line]) == 1


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2m", 120), ("1h", 3600), ("45", 45)])
def test_durations(text, seconds):
    from comatch.cli.options import duration

    assert duration(text) == seconds


def test_a_wrong_duration(cli, images):
    code, _, err = cli("train", images, "--time", "soon")
    assert code == 2
    assert "--time soon" in err


def test_the_commands_that_list(cli):
    code, out, _ = cli("encoders")
    assert code == 0
    assert all(name in out for name in encoders.ENCODERS)
    code, _, err = cli("cache")
    assert code == 0, err
    code, _, err = cli("cache", "--clear", "unknown")
    assert code == 2
    assert "unknown" in err


def test_measured_rates_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(encoders, "rates_file", lambda: tmp_path / "rates.json")
    assert encoders.rates() == {}
    encoders.store_rate(LITE, 12.345)
    encoders.store_rate(DINO, 2)
    assert encoders.rates() == {LITE: 12.3, DINO: 2.0}
    (tmp_path / "rates.json").write_text("[damaged")
    assert encoders.rates() == {}
