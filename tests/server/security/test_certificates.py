"""Certificates and keys are used only when they are whole and fit together, whatever the files hold."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.security.certificates import load_certificates
from inferwire_server.security.development_ca import DevelopmentCa

CA = DevelopmentCa()
SERVER, OTHER = CA.issue("server", hosts=["localhost"]), CA.issue("other")
NOW = time.time()


def test_what_fits_together_is_taken_with_its_serial_and_its_end() -> None:
    loaded = load_certificates([SERVER.certificate + CA.certificate, SERVER.key, CA.certificate], NOW)
    assert loaded.serial == SERVER.serial
    assert loaded.expires_at == pytest.approx(NOW + timedelta(days=90).total_seconds(), abs=600)
    assert loaded.client_ca_expires_at == pytest.approx(NOW + timedelta(days=365).total_seconds(), abs=600)


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ([SERVER.certificate, OTHER.key], "not that of the certificate"),
        ([SERVER.certificate, b""], "the key is no whole PEM"),
        ([b"", SERVER.key], "the certificate is no whole PEM"),
        ([SERVER.key, SERVER.certificate], "the certificate is no whole PEM"),
        ([SERVER.certificate + CA.certificate[:100], SERVER.key], "the certificate is no whole PEM"),
        ([SERVER.certificate, SERVER.key, CA.certificate[:-40]], "the clients' CA is no whole PEM"),
        ([SERVER.certificate, SERVER.key, b""], "the clients' CA is no whole PEM"),
    ],
)
def test_what_does_not_is_refused_with_what_is_wrong(contents: list[bytes], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_certificates(contents, NOW)


def test_a_key_with_a_password_and_a_certificate_that_has_ended_are_refused() -> None:
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    with pytest.raises(ValueError, match="without a password"):
        load_certificates([SERVER.certificate, locked], NOW)
    ended = CA.issue("ended", lasts=-timedelta(hours=1))
    with pytest.raises(ValueError, match="expired on"):
        load_certificates([ended.certificate, ended.key], NOW)


@given(st.sampled_from([0, 1, 2]), st.integers(0, 2000), st.binary(max_size=4), st.integers(0, 8))
def test_no_damage_makes_it_fail_otherwise_than_as_a_bad_file(which: int, at: int, put: bytes, cut: int) -> None:
    contents = [SERVER.certificate, SERVER.key, CA.certificate]
    whole = contents[which]
    contents[which] = whole[:at] + put + whole[at + cut :]
    try:
        loaded = load_certificates(contents, NOW)
    except ValueError:
        return
    assert loaded.serial
