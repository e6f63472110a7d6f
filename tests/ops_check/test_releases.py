"""A release names every image by digest, or there is none."""

from __future__ import annotations

import pytest
import yaml

from tools import release_manifests

DIGEST = "registry.example/inferwire@sha256:" + "ab" * 32


def test_a_release_without_digests_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert release_manifests.main(["region-eu"]) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert "inferwire:gpu has no digest" in printed.err
    assert "inferwire-models:release has no digest" in printed.err


def test_a_tag_is_no_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert release_manifests.main(["gpu", "--image", "inferwire:gpu=registry.example/inferwire:1.0"]) == 1

    assert "has no digest" in capsys.readouterr().err


def test_an_image_that_no_manifest_names_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert release_manifests.main(["gpu", "--image", f"inferwire:gpu={DIGEST}", "--image", f"infer:gpu={DIGEST}"]) == 1

    assert "infer:gpu is in none of the manifests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overlay", "images"),
    [
        ("cpu", {"inferwire:cpu"}),
        ("region-eu", {"inferwire:gpu", "inferwire-models:release"}),
        ("multinode", {"inferwire:gpu"}),
        ("compose", set(release_manifests.image_names(release_manifests.rendering("compose")[0]))),
    ],
)
def test_a_release_has_the_digests_it_was_given_everywhere(
    overlay: str, images: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument for name in images for argument in ("--image", f"{name}={DIGEST}")]

    assert release_manifests.main([overlay, *given]) == 0

    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {name for each in documents for name in release_manifests.image_names(each)} == {DIGEST}
