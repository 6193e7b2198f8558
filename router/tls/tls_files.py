"""PEM files of TLS. What is wrong with one is said with its key and path, of which OpenSSL says only "PEM lib"."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path

CERTIFICATE, PRIVATE_KEY = "CERTIFICATE", "PRIVATE KEY"
MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")

FileTimes = tuple[tuple[int, int], ...]


class TlsFileError(ValueError):
    """One of the files cannot be used: `key` is its key in its `section` of the configuration, and `reason` a sentence
    with its path."""

    def __init__(self, key: str, reason: str, section: str = "") -> None:
        super().__init__(f"{section}{key}: {reason}")
        self.key = key
        self.reason = reason
        self._section = section

    def __reduce__(self) -> tuple[type[TlsFileError], tuple[str, str, str]]:
        """Ray carries it from a router that cannot start to the driver."""
        return TlsFileError, (self.key, self.reason, self._section)

    def within(self, section: str) -> TlsFileError:
        """The same, of a file whose key is in this section (`http.tls.`)."""
        return TlsFileError(self.key, self.reason, section)


def load_pair(context: ssl.SSLContext, cert: str, key: str, names: tuple[str, str] = ("cert_file", "key_file")) -> None:
    """Presents a certificate (with its chain), whose key is in another file. `names` are their keys in the
    configuration. Raises TlsFileError unless they fit together."""
    cert_name, key_name = names
    _check_holds(cert_name, cert, CERTIFICATE)
    _check_holds(key_name, key, PRIVATE_KEY)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except _EncryptedKeyError as error:
        raise TlsFileError(key_name, f"{key}: the key is encrypted; give one without a password") from error
    except (OSError, ValueError) as error:  # SSLError is an OSError
        if isinstance(error, ssl.SSLError) and error.reason in MISMATCHES:
            raise TlsFileError(key_name, f"{key}: not the key of {cert}") from error
        raise TlsFileError(cert_name, f"cannot use {cert} with the key {key}: {error}") from error


def load_authorities(context: ssl.SSLContext, file: str, name: str = "ca_file") -> None:
    """Trusts the authorities whose certificates are in a file, beside those that are trusted already. Raises
    TlsFileError."""
    _check_holds(name, file, CERTIFICATE)
    try:
        context.load_verify_locations(file)
    except (OSError, ValueError) as error:
        raise TlsFileError(name, f"cannot use {file}: {error}") from error


def file_times(files: Iterable[str]) -> FileTimes:
    """What changes when one of the files is replaced or written."""
    times = []
    for file in files:
        try:
            status = Path(file).stat()
        except OSError:
            times.append((0, 0))  # loading it says why
        else:
            times.append((status.st_ino, status.st_mtime_ns))
    return tuple(times)


class _EncryptedKeyError(ValueError):
    """OpenSSL asks for the password of the key."""


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal."""
    raise _EncryptedKeyError


def _check_holds(name: str, file: str, what: str) -> None:
    """Raises TlsFileError unless there is a PEM block of that kind."""
    try:
        data = Path(file).read_bytes()
    except (OSError, ValueError) as error:  # no file may be called like that
        raise TlsFileError(name, f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if what.encode() + b"-----" not in data:
        raise TlsFileError(name, f"{file}: there is no {what} in PEM form in it")
