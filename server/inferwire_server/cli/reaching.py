"""Which server a command talks to, and how: address, TLS, credential. The variables are the client's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from inferwire import ClientConfig


@dataclass(frozen=True, slots=True)
class Reach:
    """As the flags say."""

    address: str
    tls: bool
    tls_ca: str | None
    tls_certificate: str | None
    tls_key: str | None
    tls_server_name: str | None
    credential_file: str | None

    @property
    def speaks_tls(self) -> bool:
        """As --tls says, or any of --tls-…."""
        return self.tls or bool(self._tls_settings())

    def config(self) -> ClientConfig:
        """For a client. Raises click.UsageError."""
        from inferwire import ClientConfig
        from inferwire.regions import is_local
        from inferwire.settings_reader import SettingsError

        if self.credential_file is not None and not self.speaks_tls and not is_local(self.address):
            raise click.UsageError(
                f"a credential goes to {self.address} over TLS only: name the CA of the server's certificate "
                "by --tls-ca (a public CA: --tls)"
            )
        settings: dict[str, object] = {
            "regions": [{"name": "default", "endpoints": [self.address]}],
            "tls": {"enabled": self.speaks_tls, **self._tls_settings()},
        }
        if self.credential_file is not None:
            settings["credential_file"] = self.credential_file
        try:
            return ClientConfig.from_dict(settings)
        except SettingsError as error:
            raise click.UsageError(str(error)) from None

    def _tls_settings(self) -> dict[str, str]:
        named = {
            "ca_file": self.tls_ca,
            "certificate_file": self.tls_certificate,
            "key_file": self.tls_key,
            "server_name": self.tls_server_name,
        }
        return {name: value for name, value in named.items() if value is not None}


def _variable(name: str) -> str:
    return f"INFERWIRE_CLIENT_{name}"


_OPTIONS = (
    click.option(
        "--address", default="127.0.0.1:50051", show_default=True, envvar="INFERWIRE_ADDRESS", help="Server to talk to."
    ),
    click.option("--tls", is_flag=True, envvar=_variable("TLS_ENABLED"), help="Speak TLS; --tls-… imply it."),
    click.option(
        "--tls-ca", envvar=_variable("TLS_CA_FILE"), help="PEM file of the CAs to trust. Default: public ones."
    ),
    click.option("--tls-certificate", envvar=_variable("TLS_CERTIFICATE_FILE"), help="PEM file of your certificate."),
    click.option("--tls-key", envvar=_variable("TLS_KEY_FILE"), help="PEM file of its key."),
    click.option("--tls-server-name", envvar=_variable("TLS_SERVER_NAME"), help="Name in the server's certificate."),
    click.option(
        "--credential-file", envvar=_variable("CREDENTIAL_FILE"), help="File that holds an API key or a token."
    ),
)


def reach_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command these options as one argument, `reach`."""

    @wraps(command)
    def with_reach(**given: Any) -> Any:
        reach = Reach(**{name: given.pop(name) for name in Reach.__dataclass_fields__})
        return command(reach=reach, **given)

    wrapped: Callable[..., Any] = with_reach
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
