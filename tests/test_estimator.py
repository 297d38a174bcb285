"""The scikit-learn estimator: its contract, pipelines and searches, images of every form."""

import pickle

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import comatch
from helpers import TINY_SHARED, make_images

pytestmark = pytest.mark.slow

SMALL = TINY_SHARED | {"mu": 1, "optimizer": "sgd"}
IMPOSSIBLE = {
    "check_classifiers_classes": "-1 is no class: it marks an unlabelled image",
    "check_methods_subset_invariance": "sums in float32 are rounded otherwise in other batches",
}


def tiny(steps=1, **options):
    return comatch.Classifier(steps=steps, device="cpu", settings=SMALL, **options)


@parametrize_with_checks(
    [comatch.Classifier(steps=1, device="cpu", settings=SMALL)],
    expected_failed_checks=lambda _: IMPOSSIBLE,
)
@pytest.mark.filterwarnings("ignore")
def test_the_contract_of_scikit_learn(estimator, check, monkeypatch):
    monkeypatch.setenv("COMATCH_REVISION", "none")  # asking git takes most of the time
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    """A table of pixels, of which 10 a class are labelled, and a test part."""
    bunch = load_digits(n_class=3)
    x, y = bunch.data, bunch.target
    hidden = y[:400].copy()
    for c in range(3):
        hidden[np.flatnonzero(hidden == c)[10:]] = -1
    return x[:400], hidden, x[400:], y[400:]


@pytest.fixture(scope="module")
def fitted(digits):
    return tiny(steps=40, method="comatch", recipe="digits").fit(*digits[:2])


def test_fit_learns_from_few_labels(fitted, digits):
    x, y = digits[2:]
    assert fitted.score(x, y) > 0.6
    assert fitted.classes_.tolist() == [0, 1, 2]
    p = fitted.predict_proba(x)
    assert np.array_equal(fitted.predict(x), p.argmax(1))
    assert fitted.transform(x).shape == (len(x), len(fitted.get_feature_names_out()))


def test_score_leaves_unlabelled_images_out(fitted, digits):
    x, y = digits[2:]
    hidden = np.where(np.arange(len(y)) < 50, y, -1)
    assert fitted.score(x, hidden) == fitted.score(x[:50], y[:50])
    weights = np.arange(len(y)) < 20
    assert fitted.score(x, y, weights) == fitted.score(x[:20], y[:20])
    with pytest.raises(ValueError, match="no class in y is known"):
        fitted.score(x, np.full(len(y), -1))


def test_a_refit_starts_from_the_weights_there_are(fitted, digits):
    x, y = digits[:2]
    again = pickle.loads(pickle.dumps(fitted)).refit(x, y)
    assert again.n_iter_ == again.refit(x, y).n_iter_ == fitted.n_iter_ // 4
    assert again.score(*digits[2:]) > 0.6
    assert clone(fitted).fit(x, y).n_iter_ == fitted.n_iter_


def test_a_refit_with_a_new_class_is_a_fit(fitted, digits):
    x, y = digits[:2]
    more = np.where(np.arange(len(y)) < 5, 7, y)
    again = pickle.loads(pickle.dumps(fitted)).refit(x, more, steps=1)
    assert again.classes_.tolist() == [0, 1, 2, 7]


def test_images_of_every_form_are_the_same(digits, tmp_path):
    x, y = digits[0][:30], digits[1][:30]
    grey = np.round(x * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
    paths = [tmp_path / f"{i:02d}.png" for i in range(len(grey))]
    for path, pixels in zip(paths, grey, strict=True):
        Image.fromarray(pixels).save(path)
    forms = [x, grey, np.stack([grey] * 3, -1), list(map(Image.open, paths)), paths]
    p = [tiny().fit(form, y).predict_proba(form) for form in forms]
    for one in p[1:]:
        assert np.allclose(one, p[0], atol=1e-6)


def test_text_as_classes(digits):
    x, names = digits[0], np.array(["zero", "one", "two", None], dtype=object)[digits[1]]
    classifier = tiny().fit(x, names)
    assert classifier.classes_.tolist() == ["one", "two", "zero"]
    assert set(classifier.predict(x)) <= set(classifier.classes_)
    assert tiny().fit(x, list(map(str, digits[1]))).classes_.tolist() == ["0", "1", "2"]


def test_a_search_over_settings(digits):
    x, y = digits[0][:60], load_digits(n_class=3).target[:60]
    search = GridSearchCV(tiny(recipe="digits"), {"steps": [1, 2]}, cv=2, error_score="raise")
    search.fit(x, y)
    assert search.best_params_["steps"] in (1, 2)


def test_a_pipeline_on_its_features(digits):
    x, y = digits[2:]
    pipeline = make_pipeline(tiny(steps=2, recipe="digits"), LogisticRegression())
    assert pipeline.fit(x, y).score(x, y) > 0.5


def test_what_was_fitted_is_saved_as_a_run(fitted, digits, tmp_path):
    fitted.save(tmp_path / "saved")
    x = np.round(digits[2] * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
    loaded = comatch.load(tmp_path / "saved", device="cpu")
    assert loaded.classes == ["0", "1", "2"]
    p = loaded.predict(list(x)).probabilities.numpy()
    assert np.allclose(p, fitted.predict_proba(digits[2]), atol=1e-6)


def test_wrong_input_is_a_value_error(tmp_path):
    images = sorted(make_images(tmp_path / "images").glob("test/*/*.png"))
    with pytest.raises(ValueError, match="unknown setting 'nothing'"):
        comatch.Classifier(settings={"nothing": 1}).fit(images, [0, 1] * 4)
    with pytest.raises(ValueError, match="do not exist"):
        tiny().fit(["nowhere.png"] * 8, [0, 1] * 4)
    with pytest.raises(ValueError, match="cannot be read"):
        tiny().fit(images, [0, 1] * 4).predict(["nowhere.png"])
