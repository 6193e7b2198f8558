"""Which texts are addresses of models."""

from __future__ import annotations

import pytest

from slipstream.router.model_files.sources.weights_url import WeightsUrl, WeightsUrlError


@pytest.mark.parametrize("text", ["../models/x", "/models/x", "~/x", "x", "org/name", "C:/models"])
def test_a_path_is_no_address(text: str) -> None:
    assert WeightsUrl.parse(text) is None


@pytest.mark.parametrize(
    ("text", "scheme", "location", "revision", "name"),
    [
        ("hf://org/some-8b", "hf", "org/some-8b", "", "org/some-8b"),
        ("HF://org/some-8b@refs/pr/3", "hf", "org/some-8b", "refs/pr/3", "org/some-8b"),
        ("hf://gpt2", "hf", "gpt2", "", "gpt2"),
        ("s3://bucket/models/chat/", "s3", "bucket/models/chat", "", "chat"),
        ("gs://bucket", "gs", "bucket", "", "bucket"),
        ("az://container/chat", "az", "container/chat", "", "chat"),
        ("https://example.org:8443/models/chat", "https", "example.org:8443/models/chat", "", "chat"),
        ("file:///models/chat", "file", "/models/chat", "", "chat"),
    ],
)
def test_an_address_has_its_parts(text: str, scheme: str, location: str, revision: str, name: str) -> None:
    url = WeightsUrl.parse(text)
    assert url == WeightsUrl(scheme, location, revision)
    assert url is not None
    assert url.name == name
    assert WeightsUrl.parse(str(url)) == url
    assert "/" not in url.slug


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://example.org/x", "use https://"),
        ("ftp://example.org/x", "must be a directory or begin with one of hf://"),
        ("hf://org/name/folder", "must be hf://ORGANIZATION/NAME"),
        ("hf://org/name@", "must be hf://ORGANIZATION/NAME"),
        ("hf://", "must be hf://ORGANIZATION/NAME"),
        ("s3://", "must name a folder"),
        ("s3:///x", "must name a folder"),
        ("file://models/x", "must name an absolute path"),
        ("https://example.org/x?token=1", "without ? and #"),
        ("https://me:secret@example.org/x", "must not contain a user or a password"),
        ("https://me:secret@example.org/x?y", "must not contain a user or a password"),
        ("http://me:secret@example.org/x", "must not contain a user or a password"),
        ("http://example.org/x?token=1", "use https://"),
        ("https://example.org/x#token=1", "without ? and #"),
        ("ftp://example.org/x?token=1", "must be a directory or begin with one of hf://"),
        ("s3://key:secret@bucket/x", "must not contain a user or a password"),
        ("hf://me:secret@org/name", "must not contain a user or a password"),
        ("s3://bucket/a\nb", "must be printable"),
    ],
)
def test_another_one_is_refused_without_its_secrets(text: str, words: str) -> None:
    with pytest.raises(WeightsUrlError) as refused:
        WeightsUrl.parse(text)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "token=1" not in str(refused.value)


def test_only_a_commit_is_pinned() -> None:
    url = WeightsUrl("hf", "org/name", "main")
    assert not url.is_pinned
    assert url.at("a" * 40).is_pinned
    assert url.at("a" * 40).shown == "hf://org/name@aaaaaaaa"
