"""The 3x3 convolutions: they compile (without a GPU) and compute the right result (with one)."""

from types import SimpleNamespace

import pytest
import torch
from reference import SLOPE, conv_backward_input, conv_backward_weight, conv_forward, images

from helpers import error

pytest.importorskip("triton")
from comatch.kernels import conv

pytestmark = pytest.mark.skipif(not conv.LOADS_KERNELS, reason="needs PyTorch 2.11")

COUNTS = [(16, 32), (32, 32)]  # channels in and out that the kernels support
GPUS = {"80": 166_912, "90": 232_448}  # bytes of shared memory available to a block

# Assertions in the source: what it and `conv` must agree on.
AGREED = {
    "conv": """
static_assert(9 * K_CH / 8 * N_CH * 16 + 2 * N_CH * 4 + TEAMS * X_TILE * 16 == SHARED);
static_assert(TEAMS * WARPS * 2 * N_CH * 4 <= SHARED);
static_assert(TEAM * TEAMS == THREADS);
""",
    "weight_gradient": """
static_assert(TEAMS * (X_TILE + DY_TILE) * 16 <= SHARED);
static_assert(9 * K_CH * N_CH * 4 <= SHARED);
static_assert(W_THREADS == THREADS);
""",
}


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Records kernels instead of compiling and running them."""
    seen = {"compiled": [], "launched": []}

    def compile(source, name):
        seen["compiled"].append((name, source))
        return b"cubin", name

    def launch(grid, block, args, shared_mem):
        seen["launched"].append((grid, block, args, shared_mem))

    launch.set_shared_memory_config = lambda size: seen.update(configured=size)
    monkeypatch.setenv("COMATCH_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(conv.nvrtc, "_nvrtc_compile", compile)
    monkeypatch.setattr(conv.nvrtc, "_cuda_load_module", lambda binary, names: {names[0]: launch})
    monkeypatch.setattr(conv, "_processors", lambda device: 3)
    monkeypatch.setattr(conv, "add_parts", lambda parts: parts[0])
    conv._kernel.cache_clear()
    yield seen
    conv._kernel.cache_clear()


def call(piece, into, out, n=2, device="cpu", dtype=torch.bfloat16):
    """One of the three kernels and its reference implementation, on noise."""
    x = images(n, into, 32, 32, device=device, dtype=dtype)
    dy = images(n, out, 32, 32, device=device, dtype=dtype)
    weight = images(out, into, 3, 3, device=device) / 8
    coef = torch.stack([torch.rand(into) + 0.5, torch.randn(into)]).to(device)
    arguments = {
        "forward": (x, coef, weight, SLOPE),
        "residual": (x, coef, weight, SLOPE, dy),
        "backward_input": (dy, x, coef, weight, SLOPE),
        "backward_weight": (dy, x, coef, SLOPE),
    }[piece]
    kernel, reference = {
        "backward_input": (conv.backward_input, conv_backward_input),
        "backward_weight": (conv.backward_weight, conv_backward_weight),
    }.get(piece, (conv.forward, conv_forward))
    precise = [a.double() if isinstance(a, torch.Tensor) else a for a in arguments]
    return lambda: kernel(*arguments), lambda: reference(*precise)


@pytest.fixture(scope="module")
def compiler():
    compile = conv.nvrtc._nvrtc_compile
    try:
        compile('extern "C" __global__ void nothing() {}', "nothing", "90")
    except (OSError, AttributeError):
        pytest.skip("needs NVRTC, which comes with PyTorch for CUDA")
    return compile


@pytest.mark.parametrize("piece", ["forward", "backward_input", "backward_weight"])
@pytest.mark.parametrize(("into", "out"), COUNTS)
def test_the_source_compiles_and_agrees_with_its_caller(compiler, launched, into, out, piece):
    """Shared memory including padding, and threads, are what the source expects."""
    call(piece, into, out)[0]()
    ((name, source),) = launched["compiled"]
    ((grid, block, args, shared),) = launched["launched"]
    assert launched["configured"] == shared
    assert grid == (3, 1, 1)
    assert args[-1] == 2 * 32 // conv.ROWS  # tiles of all images
    numbers = f"constexpr int SHARED = {shared}, THREADS = {block[0]};"
    for gpu, most in GPUS.items():
        assert shared <= most
        binary, _ = compiler(source + numbers + AGREED[name], name, gpu)
        assert binary.startswith(b"\x7fELF")


def test_a_disagreement_is_detected(compiler, launched):
    call("forward", 16, 32)[0]()
    ((name, source),) = launched["compiled"]
    numbers = "constexpr int SHARED = 0, THREADS = 512;"
    with pytest.raises(RuntimeError, match="2 errors"):
        compiler(source + numbers + AGREED[name], name, "90")


@pytest.mark.parametrize("rows", [8, 10])
@pytest.mark.parametrize("width", range(30, 40))
def test_padding(rows, width):
    """Planes of 8 channels begin 2 modulo 8 pieces of 16 bytes apart: other banks of memory."""
    pieces = conv._tile(8, rows, width) // 16
    assert pieces % 8 == 2
    assert 0 <= pieces - rows * width < 8
    assert conv._tile(32, rows, width) == 4 * 16 * pieces


def test_kernels_are_compiled_once_for_each_kind_of_gpu(launched, monkeypatch):
    """The next process finds the binaries in the cache on disk."""
    for capability, times in (((9, 0), 1), ((9, 0), 1), ((8, 0), 2), ((8, 0), 2)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, c=capability: c)
        call("forward", 16, 32)[0]()
        conv._kernel.cache_clear()
        assert len(launched["compiled"]) == times


def test_weights_of_any_memory_format(launched):
    """The source reads them as [out][tap][in]."""
    x, weight = images(1, 16, 32, 32, dtype=torch.bfloat16), torch.randn(32, 16, 3, 3)
    conv.forward(x, torch.zeros(2, 16), weight, SLOPE)
    ((_, _, args, _),) = launched["launched"]
    assert torch.equal(args[2], weight)
    assert args[2].is_contiguous(memory_format=torch.channels_last)


def test_fits(monkeypatch):
    monkeypatch.setattr(conv, "_able", lambda device: device == "able")

    def fits(size=(32, 32), stride=1, out=32, into=16, kernel=3, is_cuda=True, device="able"):
        x = SimpleNamespace(shape=(2, into, *size), is_cuda=is_cuda, device=device)
        return conv.fits(x, torch.zeros(out, into, kernel, kernel), stride)

    assert fits()
    assert fits(into=32)
    assert not fits(size=(16, 16))
    assert not fits(size=(32, 16))
    assert not fits(stride=2)
    assert not fits(out=64, into=32)
    assert not fits(out=16, into=16)
    assert not fits(kernel=1)
    assert not fits(is_cuda=False)
    assert not fits(device="old")


@pytest.mark.parametrize(
    ("major", "memory", "able"),
    [(8, 166_912, True), (9, 232_448, True), (8, 101_376, False), (7, 232_448, False)],
)
def test_able(monkeypatch, major, memory, able):
    """A100 and H100 are supported. Consumer GPUs lack shared memory, older GPUs bf16."""
    gpu = SimpleNamespace(major=major, shared_memory_per_block_optin=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    assert conv._able.__wrapped__(None) is able


def test_able_requires_the_shared_memory_of_the_largest_kernel(launched, monkeypatch):
    for piece in ("forward", "backward_input", "backward_weight"):
        for into, out in COUNTS:
            call(piece, into, out)[0]()
    most = max(shared for *_, shared in launched["launched"])
    for memory, able in ((most, True), (most - 1, False)):
        gpu = SimpleNamespace(major=9, shared_memory_per_block_optin=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, gpu=gpu: gpu)
        assert conv._able.__wrapped__(None) is able


@pytest.fixture
def able():
    if not conv._able(torch.device("cuda")):
        pytest.skip("this GPU is too small")


@pytest.mark.cuda
@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("n", [1, 5, 133])
@pytest.mark.parametrize("piece", ["forward", "residual", "backward_input", "backward_weight"])
@pytest.mark.parametrize(("into", "out"), COUNTS)
def test_against_pytorch(into, out, piece, n):
    kernel, reference = call(piece, into, out, n, "cuda")
    result, truth = kernel(), reference()
    if piece == "backward_weight":
        result, truth = (result,), (truth,)
    else:
        assert result[0].is_contiguous(memory_format=torch.channels_last)
        result, truth = (result[0], result[1].sum(0)), (truth[0], truth[1].sum(0))
    for value, true in zip(result, truth, strict=True):
        assert error(value, true) < 5e-3
    for part, true in zip(result[-1], truth[-1], strict=True):  # each sum, or output channel
        assert error(part, true) < 5e-3


@pytest.mark.cuda
@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("piece", ["forward", "residual", "backward_input", "backward_weight"])
@pytest.mark.parametrize(("into", "out"), COUNTS)
def test_results_are_deterministic(into, out, piece):
    kernel, _ = call(piece, into, out, 133, "cuda")
    first, again = kernel(), kernel()
    if piece == "backward_weight":
        first, again = (first,), (again,)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
