"""A CA of one's own and certificates for trying TLS out. Not for production: its key lies beside it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

TRUST_DOMAIN = "spiffe://inferwire.dev"
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes
    serial: int

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.pem and NAME-key.pem, the key for its owner only."""
        folder.mkdir(parents=True, exist_ok=True)
        key_file = folder / f"{name}-key.pem"
        key_file.touch(mode=0o600)
        key_file.write_bytes(self.key)
        (folder / f"{name}.pem").write_bytes(self.certificate)


class DevelopmentCa:
    """Signs certificates with a key made when it was."""

    def __init__(self, name: str = "inferwire development CA", *, now: datetime | None = None, days: int = 365) -> None:
        self._now = now or datetime.now(UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self._certificate = (
            _builder(self._name, self._name, self._key, self._now, timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """PEM, for those who are to trust it."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(
        self, name: str, *, hosts: Sequence[str] = (), spiffe_id: str = "", lasts: timedelta = timedelta(days=90)
    ) -> Issued:
        """A certificate for both ends of a connection. `lasts` counts from the CA's `now` and may be negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(name), self._name, key, self._now, lasts)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        names = list(_alternative_names(hosts, spiffe_id))
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(certificate.public_bytes(Encoding.PEM), _pem(key), certificate.serial_number)


def development_files(folder: Path, regions: Sequence[str]) -> list[Path]:
    """What `write_development_certificates` writes."""
    pairs = [*(folder / region / "server" for region in regions), folder / "client" / "client"]
    return [folder / "ca.pem", *(pair.with_name(pair.name + end) for pair in pairs for end in (".pem", "-key.pem"))]


def write_development_certificates(folder: Path, *, regions: Sequence[str], hosts: Sequence[str]) -> list[Path]:
    """A CA, a server for each region and one client; the folders that now hold a certificate and its key."""
    ca = DevelopmentCa()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.pem").write_bytes(ca.certificate)
    for region in regions:
        server = ca.issue(f"server-{region}", hosts=hosts, spiffe_id=f"{TRUST_DOMAIN}/region/{region}/server")
        server.write(folder / region, "server")
    ca.issue("client", spiffe_id=f"{TRUST_DOMAIN}/client").write(folder / "client", "client")
    return [*(folder / region for region in regions), folder / "client"]


def _alternative_names(hosts: Iterable[str], spiffe_id: str) -> Iterable[x509.GeneralName]:
    for host in hosts:
        try:
            yield x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            yield x509.DNSName(host)
    if spiffe_id:
        yield x509.UniformResourceIdentifier(spiffe_id)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lasts: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + lasts) - _CLOCK_SKEW)
        .not_valid_after(now + lasts)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
