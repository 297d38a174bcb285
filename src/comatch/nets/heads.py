"""Small heads on top of an encoder."""

from torch import Tensor, nn


class ProjectionHead(nn.Module):
    """g: a two-layer perceptron from features to an embedding (paper, section 4.1)."""

    def __init__(self, width: int, embedding_dim: int) -> None:
        super().__init__()
        self.width = embedding_dim
        self.layers = nn.Sequential(
            nn.Linear(width, width), nn.LeakyReLU(0.1), nn.Linear(width, embedding_dim)
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)
