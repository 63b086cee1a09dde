"""Real data is checked, and what is missing or wrong is said in one line."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import sys
import threading
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.papers import cli, data
from examples.papers.tasks import corpora, mnist, ptb

REAL = data.folder()


def needs(relative):
    return pytest.mark.skipif(
        not (REAL / relative).exists(), reason=f"needs {relative} in $SPECTRAL_PARAM_DATA"
    )


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", str(tmp_path))
    return tmp_path


def put(folder: Path, relative: str, content: bytes) -> None:
    (folder / relative).parent.mkdir(parents=True, exist_ok=True)
    (folder / relative).write_bytes(content)


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (ptb.read, r"ptb.train.txt is missing: Penn Treebank"),
        (lambda: mnist.read("train"), r"train-images-idx3-ubyte.gz is missing: MNIST"),
        (corpora.an4, r"an4_8k.npz is missing: CMU AN4"),
        (corpora.timit, r"timit is missing: the TIMIT corpus"),
    ],
)
def test_missing_data_says_what_to_put_where(read, what, folder) -> None:
    with pytest.raises(data.DataError, match=rf"{what}.*, or set SPECTRAL_PARAM_DATA to the folder"):
        read()


def test_missing_data_names_the_command_that_downloads_it(folder) -> None:
    with pytest.raises(data.DataError, match=r"Run python -m examples\.papers download mnist, or set"):
        mnist.read("train")
    with pytest.raises(data.DataError, match=r"Put it there, or set"):
        corpora.timit()


@pytest.mark.parametrize(
    "row", ["ptb-50-lstm-350", "mnist-lstm-128", "speech-lstm-158", "timit-lstm-158", "franka"]
)
def test_missing_data_is_one_line_on_stderr(row, folder, capsys) -> None:
    options = ["--results", str(folder), "--work", str(folder)]
    assert cli.main(["run", row, *options]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("error: ")
    assert "is missing" in message


def idx(magic: int, shape: tuple[int, ...], entries: bytes) -> bytes:
    return gzip.compress(b"".join(n.to_bytes(4, "big") for n in (magic, *shape)) + entries, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not compressed", "expected a file compressed by gzip"),
        (idx(2049, (60_000,), bytes(60_000)), "magic number: expected 2051, got 2049"),
        (idx(2051, (10_000, 28, 28), b""), r"shape: expected \(60000, 28, 28\), got \(10000, 28, 28\)"),
        (idx(2051, (60_000, 28, 28), bytes(100)), "number of bytes: expected 47040016, got 116"),
    ],
)
def test_bad_images_are_named(content, message, folder) -> None:
    put(folder, "mnist/train-images-idx3-ubyte.gz", content)
    with pytest.raises(data.DataError, match=message):
        mnist.read("train")


def test_bad_labels_are_named(folder) -> None:
    put(folder, "mnist/t10k-images-idx3-ubyte.gz", idx(2051, (10_000, 28, 28), bytes(7_840_000)))
    put(folder, "mnist/t10k-labels-idx1-ubyte.gz", idx(2049, (10_000,), b"\x0a" * 10_000))
    with pytest.raises(data.DataError, match="expected labels 0 … 9, got 10"):
        mnist.read("test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"too short", "number of characters: expected 5101618, got 9"),
        (b"a b" * 1_700_539 + b"c", "number of symbols: expected 50, got 4"),
    ],
)
def test_bad_texts_are_named(text, message, folder) -> None:
    put(folder, "ptb/ptb.train.txt", text)
    with pytest.raises(data.DataError, match=message):
        ptb.read()


def test_bad_archives_are_named(folder) -> None:
    put(folder, "an4_8k/an4_8k.npz", b"no archive")
    with pytest.raises(data.DataError, match="expected CMU AN4"):
        corpora.an4()
    whole = io.BytesIO()
    np.savez_compressed(whole, pcm=np.arange(10_000, dtype=np.int16))
    for size in (100, len(whole.getvalue()) - 10):  # Within the data, and within the table of contents.
        put(folder, "an4_8k/an4_8k.npz", whole.getvalue()[:size])
        with pytest.raises(data.DataError, match=r"an4_8k\.npz: expected CMU AN4"):
            corpora.an4()
    arrays = {
        "pcm": np.zeros(20, np.int16),
        "names": np.array(["a/1", "b/1"]),
        "is_test": np.array([False, True]),
    }
    np.savez(folder / "an4_8k" / "an4_8k.npz", offsets=np.array([0, 10, 20]), **arrays)
    with pytest.raises(data.DataError, match="number of utterances"):
        corpora.an4()


def nist(samples: np.ndarray, rate: int = 16000, order: str = "01") -> bytes:
    fields = f"sample_rate -i {rate}\nsample_coding -s3 pcm\nsample_byte_format -s2 {order}\n"
    return (
        f"NIST_1A\n   1024\n{fields}end_head\n".encode().ljust(1024)
        + samples.astype("<i2" if order == "01" else ">i2").tobytes()
    )


def test_nist_and_riff_files_are_read_alike(tmp_path) -> None:
    samples = (8000 * np.sin(np.arange(3200) / 20)).astype(np.int16)
    (tmp_path / "little.wav").write_bytes(nist(samples))
    (tmp_path / "big.wav").write_bytes(nist(samples, order="10"))
    with wave.open(str(tmp_path / "riff.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    little, big, riff = (corpora.read_wave(tmp_path / f"{name}.wav") for name in ("little", "big", "riff"))
    assert torch.equal(little, big)
    assert torch.equal(little, riff)
    expected = torch.from_numpy(8000 / 32768 * np.sin(np.arange(0, 3200, 2) / 20)).float()
    torch.testing.assert_close(little[50:-50], expected[50:-50], atol=1e-3, rtol=0)


def test_other_audio_is_named(tmp_path) -> None:
    (tmp_path / "text.wav").write_bytes(b"text")
    with pytest.raises(data.DataError, match="expected a NIST or RIFF file"):
        corpora.read_wave(tmp_path / "text.wav")
    (tmp_path / "slow.wav").write_bytes(nist(np.zeros(4), rate=8000))
    with pytest.raises(data.DataError, match="sample_rate: expected 16000, got 8000"):
        corpora.read_wave(tmp_path / "slow.wav")


def test_timit_is_split_by_speakers(folder, monkeypatch) -> None:
    counts = {"train": 4, "validation": 2, "test": 2}
    speakers = {"TRAIN/DR1/FAAA0": 2, "TRAIN/DR1/MBBB0": 2, "TEST/DR1/MDAB0": 2, "TEST/DR1/FCCC0": 2}
    for speaker, count in speakers.items():
        for name in ("SA1", *(f"SX{i}" for i in range(count))):
            put(folder, f"timit/{speaker}/{name}.WAV", nist(np.ones(64)))
    with pytest.raises(data.DataError, match="number of utterances"):
        corpora.timit()
    monkeypatch.setattr(corpora, "TIMIT_COUNTS", counts)
    assert {part: len(audio) for part, audio in corpora.timit().items()} == counts
    assert len(corpora.TIMIT_CORE) == 24


@needs("ptb/ptb.train.txt")
def test_real_text_has_fifty_symbols_and_the_known_lengths() -> None:
    texts = ptb.read()
    assert {part: len(text) for part, text in texts.items()} == ptb.FILES
    assert int(texts["train"].max()) == 49


@needs("mnist/train-images-idx3-ubyte.gz")
def test_real_images_are_those_of_mnist() -> None:
    images, labels = mnist.read("test")
    assert images.shape == (10_000, 784)
    assert labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


@needs("an4_8k/an4_8k.npz")
def test_real_speech_is_split_by_speakers() -> None:
    audio = corpora.an4()
    assert {part: len(sounds) for part, sounds in audio.items()} == {
        "train": 824,
        "validation": 124,
        "test": 130,
    }
    assert all(float(sound.abs().max()) <= 1 for sound in audio["test"])


@pytest.mark.skipif(sys.platform != "linux", reason="the cache is elsewhere")
def test_default_folder_is_in_the_cache(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("SPECTRAL_PARAM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data.folder() == tmp_path / "spectral_param"


@pytest.mark.parametrize(
    ("relative", "sha256"),
    [(f"{name}/{file}", sha) for name, one in data.DOWNLOADS.items() for file, sha in one.files.items()],
)
def test_real_files_have_the_checksums(relative, sha256) -> None:
    path = REAL / relative
    if not path.exists():
        pytest.skip(f"needs {relative} in $SPECTRAL_PARAM_DATA")
    if path.name == "train-images-idx3-ubyte.gz":
        # Some mirrors compress it anew. The checksum of its content is widely published.
        assert (
            hashlib.md5(gzip.decompress(path.read_bytes())).hexdigest() == "6bbc9ace898e44ae57da46a324031adb"
        )
    else:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256


CONTENT = {"first.txt": b"one", "second.txt": b"two"}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server on this machine with two files; yields the list of what it was asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            content = CONTENT.get(self.path[1:])
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{running.server_port}/"
        files = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
        monkeypatch.setattr(data, "DOWNLOADS", {"texts": data.Download("free", url, files)})
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield asked
        running.shutdown()


def test_download_gets_what_is_missing_and_leaves_the_rest(server, folder, capsys) -> None:
    put(folder, "texts/first.txt", b"another edition")
    assert cli.main(["download"]) == 0
    assert (folder / "texts" / "first.txt").read_bytes() == b"another edition"
    assert (folder / "texts" / "second.txt").read_bytes() == b"two"
    assert server == ["/second.txt"]
    said = capsys.readouterr().out
    assert "texts: free" in said
    assert "first.txt is there with another checksum, and left as it is" in said
    assert cli.main(["download", "texts"]) == 0
    assert server == ["/second.txt"]


@pytest.mark.parametrize("wrong", ["content", "name"])
def test_download_leaves_nothing_behind_that_is_wrong(wrong, server, folder, capsys, monkeypatch) -> None:
    download = data.DOWNLOADS["texts"]
    files = {"first.txt": "0" * 64} if wrong == "content" else {"third.txt": download.files["first.txt"]}
    monkeypatch.setattr(data, "DOWNLOADS", {"texts": download._replace(files=files)})
    assert cli.main(["download", "texts"]) == 1
    (name, sha256), *_ = files.items()
    assert f"{download.url}{name}: expected a file with SHA-256 {sha256}" in capsys.readouterr().err
    assert list((folder / "texts").iterdir()) == []


def test_download_of_an_unknown_name_is_an_error(folder, capsys) -> None:
    assert cli.main(["download", "timit"]) == 1
    assert "expected names out of mnist, ptb, franka, shakespeare, got timit" in capsys.readouterr().err
