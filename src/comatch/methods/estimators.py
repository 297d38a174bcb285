"""The estimators of scikit-learn by their names."""

from comatch.methods.estimator import Estimator
from comatch.methods.knn import Knn
from comatch.methods.label_spreading import LabelSpreading
from comatch.methods.logistic_regression import LogisticRegression
from comatch.methods.self_training import SelfTraining

ESTIMATORS: dict[str, type[Estimator]] = {
    estimator.Config.method: estimator
    for estimator in (LogisticRegression, Knn, LabelSpreading, SelfTraining)
}
