"""TLS of the listening side: every handshake is served with the newest certificates that could be used."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from inferwire_server.security.certificates import Certificates


def server_credentials(current: Callable[[], Certificates]) -> grpc.ServerCredentials:
    """Credentials for a port. With a CA of clients, a client without a certificate of it gets no connection.

    `current` is called in gRPC's threads, once for each connection.
    """
    served = current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        newest = current()
        if newest is served:
            return None
        served = newest
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served),
        fetch,  # type: ignore[arg-type] # None is documented: no change
        require_client_authentication=served.client_ca is not None,
    )


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.chain)], root_certificates=certificates.client_ca
    )
