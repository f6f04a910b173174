"""Attachments as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate import Attachment
from turngate._prompt import decode_attachment, encode_attachment

texts = st.text()


@given(texts | st.builds(Attachment, texts, texts, texts | st.binary()))
def test_an_attachment_comes_back_as_it_was(attachment: Attachment | str) -> None:
    assert decode_attachment(json.loads(json.dumps(encode_attachment(attachment)))) == attachment


def test_the_form_is_that_of_requests_and_ledgers() -> None:
    assert encode_attachment("text") == "text"
    assert encode_attachment(Attachment("a", "b", "c")) == {"name": "a", "mime_type": "b", "text": "c"}
    assert encode_attachment(Attachment("a", "b", b"c")) == {"name": "a", "mime_type": "b", "base64": "Yw=="}


@pytest.mark.parametrize("wrong", ["!", "YQ=", "YQ==\n", "ä"])
def test_what_is_not_base64_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"base64|padding|ASCII|data"):
        decode_attachment({"name": "a", "mime_type": "b", "base64": wrong})
